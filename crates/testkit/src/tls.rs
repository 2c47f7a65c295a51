//! Certificates for one server and its clients, issued by a new CA.

use std::sync::Mutex;

use leasehold_testkit::{Port, ServerBuilder};

/// Files in the server's folder, for [`ServerExt`](crate::ServerExt).
pub(crate) const CA_CERTIFICATE: &str = "ca.pem";
pub(crate) const CLIENT_CERTIFICATE: &str = "client.pem";
pub(crate) const CLIENT_KEY: &str = "client-key.pem";
pub(crate) const TLS_PORT: &str = "tls-port";

/// The TLS material of one server.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    ca_certificate: String,
    certificate: String,
    key: String,
    /// The certificate and key for clients, if the server requires one.
    client: Option<(String, String)>,
}

impl Tls {
    /// Issues certificates for `names`.
    pub(crate) fn new(mutual: bool, names: &[&str]) -> Self {
        let mut ca = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        // Needs a distinct name: a certificate whose issuer equals its subject
        // counts as self-signed.
        let name = rcgen::DnType::CommonName;
        ca.distinguished_name.push(name, "test CA");
        let ca_key = rcgen::KeyPair::generate().expect("a key");
        let root = ca.self_signed(&ca_key).expect("a certificate");
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let signed = || {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = rcgen::CertificateParams::new(names)
                .expect("parameters")
                .signed_by(&key, &issuer)
                .expect("a certificate");
            (certificate.pem(), key.serialize_pem())
        };
        let (certificate, key) = signed();
        Self {
            ca_certificate: root.pem(),
            certificate,
            key,
            client: mutual.then(signed),
        }
    }

    /// Enables TLS of a server on a free port.
    pub(crate) fn attach(&self, server: ServerBuilder) -> ServerBuilder {
        let port = reserve_port().to_string();
        let server = server
            .file(CA_CERTIFICATE, self.ca_certificate.as_str())
            .file("cert.pem", self.certificate.as_str())
            .file("key.pem", self.key.as_str())
            .file(TLS_PORT, port.as_str())
            .option("tls-port", port)
            .option("tls-ca-cert-file", CA_CERTIFICATE)
            .option("tls-cert-file", "cert.pem")
            .option("tls-key-file", "key.pem");
        match &self.client {
            Some((certificate, key)) => server
                .file(CLIENT_CERTIFICATE, certificate.as_str())
                .file(CLIENT_KEY, key.as_str())
                .option("tls-auth-clients", "yes"),
            None => server.option("tls-auth-clients", "no"),
        }
    }
}

/// Reserves a port for the rest of this process: a server that was killed must
/// find it free when it restarts, and nothing tells us when the server is gone.
fn reserve_port() -> u16 {
    static RESERVED: Mutex<Vec<Port>> = Mutex::new(Vec::new());
    let port = Port::reserve().expect("a free port");
    let number = port.number();
    RESERVED.lock().expect("no panic").push(port);
    number
}
