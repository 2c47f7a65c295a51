//! TLS with rustls.
//!
//! The crypto provider comes from the enabled features and is passed to every
//! connection. It is never installed as the process default, which belongs to
//! the application.

use crate::error::BoxError;

/// TLS settings.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// The root certificate (PEM) to trust instead of the system's.
    pub(crate) root_certificate: Option<Vec<u8>>,
    /// The client certificate and the private key (PEM).
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that server certificates must have, instead of the host.
    pub(crate) name: Option<String>,
    /// Accepts any server certificate.
    pub(crate) trusts_all: bool,
}

#[cfg(feature = "tls")]
pub(super) use with_rustls::{Connector, connect};
#[cfg(not(feature = "tls"))]
pub(super) use without::{NoTls as Connector, connect};

#[cfg(feature = "tls")]
mod with_rustls {
    use std::sync::Arc;

    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::rustls::client::danger::{
        HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
    };
    use tokio_rustls::rustls::crypto::{
        CryptoProvider, verify_tls12_signature, verify_tls13_signature,
    };
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
    use tokio_rustls::rustls::{
        ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    };

    use super::{BoxError, Tls};
    use crate::backend::connection::socket::Disconnect;

    impl Disconnect for TlsStream<TcpStream> {
        fn disconnect(&self, discards: bool) {
            self.get_ref().0.disconnect(discards);
        }
    }

    /// A TLS configuration.
    #[derive(Clone)]
    pub(crate) struct Connector {
        config: Arc<ClientConfig>,
        /// The name to verify instead of the host.
        name: Option<ServerName<'static>>,
    }

    impl Connector {
        pub(crate) fn new(tls: &Tls) -> Result<Self, BoxError> {
            let provider = Arc::new(provider()?);
            let builder = ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()?;
            let builder = match tls.trusts_all {
                true => builder
                    // Signatures are still verified, so the server must own the
                    // key of the certificate that it shows.
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(TrustAll(provider))),
                false => builder.with_root_certificates(roots(tls)?),
            };
            let config = match &tls.identity {
                None => builder.with_no_client_auth(),
                Some((certificate, key)) => {
                    let chain = certificates(certificate)?;
                    let key = PrivateKeyDer::from_pem_slice(key)
                        .map_err(|_| "invalid private key: not PEM")?;
                    builder.with_client_auth_cert(chain, key)?
                }
            };
            Ok(Self {
                config: Arc::new(config),
                name: tls.name.as_deref().map(verified_name).transpose()?,
            })
        }
    }

    fn verified_name(name: &str) -> Result<ServerName<'static>, BoxError> {
        let parsed = ServerName::try_from(name.to_owned());
        parsed.map_err(|_| "invalid TLS name: neither a DNS name nor an IP address".into())
    }

    /// Performs the TLS handshake. The server's certificate must be valid for
    /// `host`, or for the configured name.
    pub(crate) async fn connect(
        connector: &Connector,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = match &connector.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?,
        };
        let connector = TlsConnector::from(connector.config.clone());
        connector.connect(name, stream).await
    }

    /// Returns the provider of the enabled feature, or the process default.
    fn provider() -> Result<CryptoProvider, BoxError> {
        #[cfg(feature = "ring")]
        return Ok(tokio_rustls::rustls::crypto::ring::default_provider());
        #[cfg(all(feature = "aws-lc-rs", not(feature = "ring")))]
        return Ok(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        #[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
        return CryptoProvider::get_default()
            .map(|provider| (**provider).clone())
            .ok_or_else(|| {
                "TLS requires the feature `ring` or `aws-lc-rs` of leasehold, or a rustls provider \
                 installed by the application"
                    .into()
            });
    }

    fn roots(tls: &Tls) -> Result<RootCertStore, BoxError> {
        let mut roots = RootCertStore::empty();
        match &tls.root_certificate {
            Some(pem) => {
                for certificate in certificates(pem)? {
                    roots.add(certificate)?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                // Systems ship certificates that rustls rejects. One usable
                // root is enough to go on; the handshake decides.
                let (added, _) = roots.add_parsable_certificates(found.certs);
                if added == 0 {
                    return Err(
                        "no root certificates found on this system: install ca-certificates, \
                         set SSL_CERT_FILE, or configure a root certificate"
                            .into(),
                    );
                }
            }
        }
        Ok(roots)
    }

    fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BoxError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => Err("invalid certificate: not PEM".into()),
        }
    }

    /// Verifies signatures, but accepts any certificate.
    #[derive(Debug)]
    struct TrustAll(Arc<CryptoProvider>);

    impl ServerCertVerifier for TrustAll {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let known = &self.0.signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signature, known)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let known = &self.0.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, known)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use tokio::net::TcpStream;

    use super::{BoxError, Tls};

    /// TLS is not compiled in; this type has no values.
    #[derive(Clone)]
    pub(crate) enum NoTls {}

    impl NoTls {
        pub(crate) fn new(_: &Tls) -> Result<Self, BoxError> {
            Err("TLS requires the feature `tls` of leasehold".into())
        }
    }

    pub(crate) async fn connect(
        connector: &NoTls,
        _: &str,
        _: TcpStream,
    ) -> std::io::Result<TcpStream> {
        match *connector {}
    }
}
