//! Sells a coupon under a lock; the first example of the README.
//!
//! ```sh
//! cargo run -p examples --bin quick-start
//! ```

use leasehold::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect("redis://127.0.0.1/").await?;
    let coupon = client.mutex("coupon:42");
    // Waits for the lock, renews it while the work runs, and drops the work if
    // the lock is lost.
    let work = coupon.run(|lease| async move { format!("sold with token {}", lease.token()) });
    println!("{}", work.await?);
    Ok(())
}
