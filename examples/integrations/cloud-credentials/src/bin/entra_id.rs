//! Locks on Azure Managed Redis, with tokens of Microsoft Entra ID.
//!
//! ```text
//! REDIS_URL=rediss://NAME.REGION.redis.azure.net:10000 \
//! REDIS_USER=OBJECT-ID-OF-THE-IDENTITY cargo run --bin entra-id
//! ```

use std::env;
use std::sync::Arc;
use std::time::SystemTime;

use azure_core::credentials::TokenCredential;
use azure_identity::ManagedIdentityCredential;
use leasehold::{Client, Credentials};

const SCOPE: &str = "https://redis.azure.com/.default";

/// Returns the credentials of `user`, which is the identity's object id.
///
/// The SDK caches the token and refreshes it before it expires, so asking at
/// every connect costs no request.
async fn credentials(
    identity: Arc<dyn TokenCredential>,
    user: String,
) -> azure_core::Result<Credentials> {
    let token = identity.get_token(&[SCOPE], None).await?;
    let credentials = Credentials::new(user, token.token.secret());
    Ok(credentials.valid_until(SystemTime::from(token.expires_on)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let user = env::var("REDIS_USER")?;
    let identity: Arc<dyn TokenCredential> = ManagedIdentityCredential::new(None)?;
    let client = Client::connect(&env::var("REDIS_URL")?)
        .credentials(move |_server| credentials(identity.clone(), user.clone()))
        .await?;
    let guard = client.mutex("nightly").lock().await?;
    println!("{} has token {}", guard.name(), guard.token());
    guard.release().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use azure_core::credentials::{AccessToken, Secret, TokenRequestOptions};
    use azure_core::time::OffsetDateTime;
    use testkit::{Flavor, Server, ServerExt};

    use super::*;

    /// Longer than any event takes. Only a defect reaches it.
    const AMPLE: Duration = Duration::from_secs(60);

    /// Returns a new token each time, which the server accepts and which
    /// expires soon.
    #[derive(Debug)]
    struct Identity {
        server: Arc<Server>,
        asked: AtomicU32,
    }

    #[async_trait::async_trait]
    impl TokenCredential for Identity {
        async fn get_token(
            &self,
            scopes: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            assert_eq!(scopes, [SCOPE]);
            let number = self.asked.fetch_add(1, Ordering::Relaxed);
            let token = format!("token-{number}");
            let password = format!(">{token}");
            let rights = ["~*", "&*", "+@all"];
            let mut admin = self.server.connect();
            let words = ["ACL", "SETUSER", "object-id", "on", "resetpass", &password];
            let words: Vec<_> = words.into_iter().chain(rights).collect();
            admin.ask(&words).expect("the server is up");
            let expires_on = OffsetDateTime::now_utc() + Duration::from_secs(2);
            Ok(AccessToken::new(Secret::new(token), expires_on))
        }
    }

    /// Each token ends the one before, so a client that logged in once would
    /// fail at its next connect, and is asked again before the end.
    #[tokio::test]
    async fn client_logs_in_again_before_a_token_expires() {
        let identity = Arc::new(Identity {
            server: Arc::new(Flavor::one().start()),
            asked: AtomicU32::new(0),
        });
        let asked = || identity.asked.load(Ordering::Relaxed);
        let asks = identity.clone();
        let provider = move |_| credentials(asks.clone(), "object-id".into());
        let url = format!("redis://127.0.0.1:{}", identity.server.port());
        let client = Client::connect(&url)
            .credentials(provider)
            .connect_timeout(AMPLE)
            .await
            .expect("the server accepts the token");
        let guard = client.mutex("nightly").lock().await.expect("it is free");
        let before = asked();
        tokio::time::timeout(AMPLE, async {
            while asked() < before + 3 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
        .expect("the client asks again before the end");
        guard.release().await.expect("it is still held");
    }
}
