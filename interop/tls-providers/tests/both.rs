//! Both providers are linked and neither is the process default, so code that
//! relies on the default provider of rustls panics.

use leasehold::{Client, ReleaseOutcome};
use testkit::{Flavor, Setup};

#[tokio::test]
async fn library_and_reqwest_use_both_providers() {
    let server = Setup::default().tls().start(&Flavor::one());
    let authority = server.ca_certificate().as_bytes();
    let url = format!("rediss://127.0.0.1:{}", server.tls_port());
    let client = Client::builder(&url).root_certificate(authority);
    let client = client.connect().await.unwrap();
    let guard = client.mutex("job").lock().await.unwrap();

    // The server does not speak HTTP and closes the connection. The handshake
    // must succeed.
    let root = reqwest::Certificate::from_pem(authority).unwrap();
    let web = reqwest::Client::builder().tls_certs_only([root]).build().unwrap();
    let page = web.get(url.replace("rediss", "https")).send().await;
    let error = page.expect_err("the server does not speak HTTP");
    assert!(!error.is_connect(), "{error:?}");

    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}
