//! Both providers are linked, and neither is installed: code that asks rustls for "the" provider panics here.

use leasehold::{Client, Release};
use testkit::{Flavor, Setup};

#[tokio::test]
async fn library_connects_beside_reqwest() {
    let server = Setup::default().tls().start(&Flavor::one());
    let authority = server.ca_certificate().as_bytes();
    let url = format!("rediss://127.0.0.1:{}", server.tls_port());
    let client = Client::builder(&url).root_certificate(authority);
    let client = client.connect().await.unwrap();
    let guard = client.mutex("job").lock().await.unwrap();

    // The server is none of HTTP, and says so by hanging up: what counts is that the handshake was done.
    let root = reqwest::Certificate::from_pem(authority).unwrap();
    let web = reqwest::Client::builder().tls_certs_only([root]).build().unwrap();
    let page = web.get(url.replace("rediss", "https")).send().await;
    let error = page.expect_err("no HTTP is spoken there");
    assert!(!error.is_connect(), "{error:?}");

    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}
