//! Certificates for one server and those that it lets in, of an authority made for it.

#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// What a client shows that is to be let in; nobody is asked where there is none.
    pub(crate) visitor: Option<(String, String)>,
}

impl Tls {
    /// Makes certificates for `names`.
    pub(crate) fn new(mutual: bool, names: &[&str]) -> Self {
        let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        // Of its own name: one that signs in its own name counts as signed by itself.
        let name = rcgen::DnType::CommonName;
        authority.distinguished_name.push(name, "authority");
        let authority_key = rcgen::KeyPair::generate().expect("a key");
        let root = authority
            .self_signed(&authority_key)
            .expect("a certificate");
        let issuer = rcgen::Issuer::new(authority, authority_key);
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
            authority: root.pem(),
            certificate,
            key,
            visitor: mutual.then(signed),
        }
    }
}
