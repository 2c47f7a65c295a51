//! The fenced object on an S3-compatible server, and the variant that fails.

use hyper_util::rt::{TokioExecutor, TokioIo};
use leasehold_fence::{Fence, FenceError};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use object_store_fence::FencedObject;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

const BUCKET: &str = "coupons";

/// A server in this process, on a free loopback port. Its files are deleted
/// when the value is dropped.
struct Server {
    store: AmazonS3,
    folder: std::path::PathBuf,
}

impl Server {
    async fn start(name: &str) -> Self {
        let name = format!("leasehold-s3-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join(BUCKET)).expect("a bucket");
        let files = s3s_fs::FileSystem::new(&folder).expect("a folder");
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single("key", "secret"));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        let store = AmazonS3Builder::new()
            .with_endpoint(format!("http://127.0.0.1:{port}"))
            .with_allow_http(true)
            .with_region("local")
            .with_bucket_name(BUCKET)
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .build();
        Self {
            store: store.expect("a client"),
            folder,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test]
async fn stale_update_is_rejected() {
    let server = Server::start("stale").await;
    let object = FencedObject::new(&server.store, "coupon-42");
    let (older, newer) = (Fence::new("coupon", 7), Fence::new("coupon", 8));
    assert_eq!(object.get().await.unwrap(), None);
    object.update(&older, |_| b"1".to_vec()).await.unwrap();
    object.update(&older, |_| b"2".to_vec()).await.unwrap();
    object.update(&newer, |_| b"3".to_vec()).await.unwrap();
    let stale = object.update(&older, |_| b"4".to_vec()).await;
    assert!(
        matches!(
            stale,
            Err(FenceError::Stale {
                ours: 7,
                seen: 8,
                ..
            })
        ),
        "{stale:?}"
    );
    assert_eq!(object.get().await.unwrap().unwrap(), b"3");
}

/// A holder that is paused between its read and its write, while the content
/// goes to another value and returns.
#[tokio::test]
async fn content_that_returns_does_not_admit_a_stale_write() {
    let server = Server::start("returns").await;
    let object = FencedObject::new(&server.store, "coupon-42");
    let (older, newer) = (Fence::new("coupon", 7), Fence::new("coupon", 8));
    object.update(&older, |_| b"A".to_vec()).await.unwrap();
    let path = Path::from("coupon-42");
    let read = server.store.head(&path).await.unwrap();
    object.update(&newer, |_| b"B".to_vec()).await.unwrap();
    object.update(&newer, |_| b"A".to_vec()).await.unwrap();
    let late = put(&server, &path, "7\nlate", read.e_tag).await;
    assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
    assert_eq!(object.get().await.unwrap().unwrap(), b"A");
}

/// The wrong variant: the token is not in the body.
#[tokio::test]
async fn etag_without_token_admits_a_stale_write() {
    let server = Server::start("etag").await;
    let path = Path::from("coupon-42");
    server.store.put(&path, "A".into()).await.unwrap();
    let read = server.store.head(&path).await.unwrap();
    for content in ["B", "A"] {
        server.store.put(&path, content.into()).await.unwrap();
    }
    put(&server, &path, "late", read.e_tag).await.unwrap();
}

async fn put(
    server: &Server,
    path: &Path,
    content: &'static str,
    e_tag: Option<String>,
) -> Result<(), Error> {
    let version = UpdateVersion {
        e_tag,
        version: None,
    };
    let options = PutOptions::from(PutMode::Update(version));
    let put = server.store.put_opts(path, content.into(), options);
    put.await.map(drop)
}
