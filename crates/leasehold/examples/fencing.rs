//! Protects a resource with fencing tokens, so that a holder that was paused
//! beyond its lease cannot overwrite later data.

use leasehold::{Client, Error, Token};

/// A resource that rejects stale writes. In practice it is a database whose
/// `UPDATE` has the condition `WHERE token <= $1`.
#[derive(Default)]
struct Resource {
    largest: Option<Token>,
}

impl Resource {
    fn write(&mut self, token: Token, text: &str) -> bool {
        if self.largest.is_some_and(|largest| token < largest) {
            return false;
        }
        self.largest = Some(token);
        println!("wrote {text:?} with token {token}");
        true
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect("redis://127.0.0.1/").await?;
    let lock = client.mutex("account:1");
    let mut account = Resource::default();

    let first = lock.lock().await?;
    let stale = first.token();
    assert!(account.write(stale, "first"));
    let _ = first.release().await?;

    let second = lock.lock().await?;
    assert!(account.write(second.token(), "second"));
    // A late write of the first holder is rejected.
    assert!(!account.write(stale, "late"));
    let _ = second.release().await?;
    Ok(())
}
