//! TLS by rustls, with the cryptography that the features choose.
//!
//! The provider is passed to every connection and never installed for the process: the choice of the application stays its
//! own.

use std::sync::Arc;

use crate::error::BoxError;

/// What TLS connections trust and show.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// The certificate (PEM) that a server's must be signed by, in place of the system's.
    pub(crate) root_certificate: Option<Vec<u8>>,
    /// Certificate and key (PEM), for servers that ask for them.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that certificates must have, in place of the host that is
    /// dialled.
    pub(crate) name: Option<String>,
    /// Accepts any certificate.
    pub(crate) trusts_all: bool,
}

#[cfg(feature = "tls")]
pub(super) use with_rustls::{Connector, connect};
#[cfg(not(feature = "tls"))]
pub(super) use without::{Connector, connect};

#[cfg(feature = "tls")]
mod with_rustls {
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

    use super::{Arc, BoxError, Tls};

    /// Makes TLS connections with one configuration.
    #[derive(Clone)]
    pub(in super::super) struct Connector {
        config: Arc<ClientConfig>,
        /// The name to verify, in place of the host that is dialled.
        name: Option<ServerName<'static>>,
    }

    impl Connector {
        pub(in super::super) fn new(tls: &Tls) -> Result<Self, BoxError> {
            let provider = Arc::new(provider()?);
            let builder = ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()?;
            let builder = match tls.trusts_all {
                true => builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(TrustAll(provider))),
                false => builder.with_root_certificates(roots(tls)?),
            };
            let config = match &tls.identity {
                None => builder.with_no_client_auth(),
                Some((certificate, key)) => {
                    let chain = certificates(certificate)?;
                    let key = PrivateKeyDer::from_pem_slice(key)
                        .map_err(|_| "the private key is not PEM")?;
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
        parsed.map_err(|_| "the TLS name is neither a DNS name nor an IP address".into())
    }

    /// Secures `stream` to a server whose certificate must be for `host`, or
    /// for the name that was set.
    pub(in super::super) async fn connect(
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

    /// The provider of the features, else the one that the application has installed.
    fn provider() -> Result<CryptoProvider, BoxError> {
        #[cfg(feature = "ring")]
        return Ok(tokio_rustls::rustls::crypto::ring::default_provider());
        #[cfg(all(feature = "aws-lc-rs", not(feature = "ring")))]
        return Ok(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        #[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
        return CryptoProvider::get_default()
            .map(|provider| (**provider).clone())
            .ok_or_else(|| {
                "TLS needs the feature `ring` or `aws-lc-rs` of leasehold, or a rustls provider \
                 that the application installs"
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
                let (added, _) = roots.add_parsable_certificates(found.certs);
                if added == 0 {
                    return Err("the system has no root certificates".into());
                }
            }
        }
        Ok(roots)
    }

    fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BoxError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => Err("the certificate is not PEM".into()),
        }
    }

    /// Checks signatures, and no certificate.
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

    /// Cannot be made: there is no TLS in this build.
    #[derive(Clone)]
    pub(in super::super) enum Connector {}

    impl Connector {
        pub(in super::super) fn new(_: &Tls) -> Result<Self, BoxError> {
            Err("it needs the feature `tls` of leasehold".into())
        }
    }

    pub(in super::super) async fn connect(
        connector: &Connector,
        _: &str,
        _: TcpStream,
    ) -> std::io::Result<TcpStream> {
        match *connector {}
    }
}
