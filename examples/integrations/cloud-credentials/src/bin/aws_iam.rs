//! Locks on ElastiCache, with tokens of AWS IAM.
//!
//! ```text
//! REDIS_URL=rediss://ENDPOINT:6379 CACHE_NAME=NAME REDIS_USER=USER \
//! cargo run --bin aws-iam
//! ```
//!
//! For MemoryDB, the service's name in the signature is `memorydb`.

use std::env;
use std::error::Error;
use std::iter;
use std::time::{Duration, SystemTime};

use aws_config::BehaviorVersion;
use aws_credential_types::Credentials as AwsCredentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign,
};
use aws_sigv4::sign::v4;
use leasehold::{Client, Credentials};

/// The longest time for which ElastiCache accepts a token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// ElastiCache closes a connection that has not logged in again for this time.
const LOGIN_LIFETIME: Duration = Duration::from_secs(12 * 3600);

type BoxError = Box<dyn Error + Send + Sync>;

/// What to sign tokens for.
#[derive(Clone)]
struct Cache {
    name: String,
    region: String,
    user: String,
}

impl Cache {
    /// Returns a token: the presigned request `connect`, without its scheme.
    fn token(&self, identity: AwsCredentials, now: SystemTime) -> Result<String, BoxError> {
        let mut settings = SigningSettings::default();
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = Some(TOKEN_LIFETIME);
        let identity = identity.into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("elasticache")
            .time(now)
            .settings(settings)
            .build()?
            .into();
        // A serverless cache also wants `&ResourceType=ServerlessCache`.
        let uri = format!("http://{}/?Action=connect&User={}", self.name, self.user);
        let signable = SignableRequest::new("GET", &uri, iter::empty(), SignableBody::Bytes(&[]))?;
        let (instructions, _) = sign(signable, &params)?.into_parts();
        let mut request = http::Request::get(&uri).body(())?;
        instructions.apply_to_request_http1x(&mut request);
        let uri = request.uri().to_string();
        Ok(uri.trim_start_matches("http://").to_owned())
    }

    /// Returns credentials for one login. Signing takes no request. The SDK
    /// caches the identity, and refreshes it before it expires.
    async fn credentials(
        self,
        identities: SharedCredentialsProvider,
    ) -> Result<Credentials, BoxError> {
        let identity = identities.provide_credentials().await?;
        let token = self.token(identity, SystemTime::now())?;
        // Not the token's lifetime: that limits when the login may begin.
        Ok(Credentials::new(self.user, token).valid_for(LOGIN_LIFETIME))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
    let region = config.region().ok_or("AWS_REGION is not set")?;
    let cache = Cache {
        name: env::var("CACHE_NAME")?,
        region: region.to_string(),
        user: env::var("REDIS_USER")?,
    };
    let identities = config.credentials_provider();
    let identities = identities.ok_or("no AWS credentials are configured")?;
    let client = Client::connect(&env::var("REDIS_URL")?)
        .credentials(move |_server| cache.clone().credentials(identities.clone()))
        .await?;
    let guard = client.mutex("nightly").lock().await?;
    println!("{} has token {}", guard.name(), guard.token());
    guard.release().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use testkit::{Flavor, Setup};

    use super::*;

    /// The identity of AWS's own examples.
    fn identity(session: Option<&str>) -> AwsCredentials {
        AwsCredentials::new(
            "AKIDEXAMPLE",
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
            session.map(str::to_owned),
            None,
            "test",
        )
    }

    fn cache() -> Cache {
        Cache {
            name: "locks".into(),
            region: "eu-central-1".into(),
            user: "web".into(),
        }
    }

    /// 2026-11-18 12:00 UTC.
    fn noon() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_003_200)
    }

    fn sorted(token: &str) -> Vec<&str> {
        let (_, query) = token.split_once("/?").expect("a query");
        let mut parameters: Vec<_> = query.split('&').collect();
        parameters.sort_unstable();
        parameters
    }

    /// The expected parameters are botocore's for the same input.
    #[test]
    fn token_has_the_signature_of_botocore() {
        let token = cache().token(identity(None), noon()).expect("it signs");
        assert!(
            token.starts_with("locks/?Action=connect&User=web&"),
            "{token}"
        );
        let expected = [
            "Action=connect",
            "User=web",
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            "X-Amz-Credential=AKIDEXAMPLE%2F20261118%2Feu-central-1%2Felasticache%2Faws4_request",
            "X-Amz-Date=20261118T120000Z",
            "X-Amz-Expires=900",
            "X-Amz-Signature=894c61d472d0b32c23a5a0e1d2ef0c4f576b8c35c192696b4aad0cef217e34ca",
            "X-Amz-SignedHeaders=host",
        ];
        assert_eq!(sorted(&token), expected);

        let token = cache().token(identity(Some("session/token+=")), noon());
        let token = token.expect("it signs");
        let expected = [
            "X-Amz-Security-Token=session%2Ftoken%2B%3D",
            "X-Amz-Signature=2d9447d6a0d2a58d3a431c46be8d1300654f4afac5aeaf17196ec442a4738d7a",
        ];
        for parameter in expected {
            assert!(
                sorted(&token).contains(&parameter),
                "{parameter} in {token}"
            );
        }
    }

    #[tokio::test]
    async fn client_logs_in_with_the_token() {
        let token = cache().token(identity(None), noon()).expect("it signs");
        let server = Setup::default().option("requirepass", &token);
        let server = server.start(&Flavor::one());
        let client = Client::connect(&format!("redis://127.0.0.1:{}", server.port()))
            .credentials(move |_| {
                let credentials = Credentials::default_user(token.clone());
                async { Ok::<_, BoxError>(credentials.valid_for(LOGIN_LIFETIME)) }
            })
            .connect_timeout(Duration::from_secs(60))
            .await
            .expect("the server accepts the token");
        let guard = client.mutex("nightly").lock().await.expect("it is free");
        guard.release().await.expect("it is still held");
    }
}
