//! Certificates for one server and its clients, issued by a new CA.

use leasehold_testkit::ServerBuilder;

/// The TLS material of one server.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) ca_certificate: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// The certificate and key for clients, if the server requires one.
    pub(crate) client: Option<(String, String)>,
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

    /// Enables TLS of a server on `port`.
    pub(crate) fn attach(&self, server: ServerBuilder, port: u16) -> ServerBuilder {
        let required = if self.client.is_some() { "yes" } else { "no" };
        server
            .file("ca.pem", self.ca_certificate.as_str())
            .file("cert.pem", self.certificate.as_str())
            .file("key.pem", self.key.as_str())
            .option("tls-port", port.to_string())
            .option("tls-ca-cert-file", "ca.pem")
            .option("tls-cert-file", "cert.pem")
            .option("tls-key-file", "key.pem")
            .option("tls-auth-clients", required)
    }
}
