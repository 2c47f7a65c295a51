//! Both providers are linked and neither is the process default, so code that
//! relies on the default provider of rustls panics.

use leasehold::Client;
use testkit::{Flavor, ServerExt, Setup};

#[tokio::test]
async fn library_and_reqwest_use_both_providers() {
    let server = Setup::default().tls().start(&Flavor::one());
    let authority = server.ca_certificate();
    let with_tls = format!("rediss://127.0.0.1:{}", server.tls_port());
    let plain = format!("redis://127.0.0.1:{}", server.port());
    for url in [&plain, &with_tls] {
        let client = Client::connect(url).root_certificate(authority.as_str());
        let client = client.await.unwrap();
        let guard = client.mutex("job").lock().await.unwrap();

        // The server does not speak HTTP and closes the connection. The
        // handshake must succeed.
        let root = reqwest::Certificate::from_pem(authority.as_bytes()).unwrap();
        let web = reqwest::Client::builder()
            .tls_certs_only([root])
            .build()
            .unwrap();
        let page = web.get(with_tls.replace("rediss", "https")).send().await;
        let error = page.expect_err("the server does not speak HTTP");
        assert!(!error.is_connect(), "{error:?}");

        guard.release().await.unwrap();
    }
}
