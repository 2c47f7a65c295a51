//! A fenced object in a store with conditional writes, such as S3.
//!
//! The token is the first line of the object's *body*. An ETag of S3 is a hash
//! of the content: without the token, content that returns to an earlier value
//! would return to an earlier ETag, and a stale conditional write would
//! succeed.

use leasehold_fence::{Fence, FenceError};
use object_store::path::Path;
use object_store::{
    Error, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
};

/// An object that is written through fences.
#[derive(Debug)]
pub struct FencedObject<'a, S> {
    store: &'a S,
    path: Path,
}

/// The content of a fenced object, and the version it was read at.
#[derive(Debug)]
struct Stored {
    token: u64,
    body: Vec<u8>,
    mode: PutMode,
}

impl<'a, S: ObjectStore> FencedObject<'a, S> {
    /// Creates a handle; sends no request.
    pub fn new(store: &'a S, path: impl Into<Path>) -> Self {
        let path = path.into();
        Self { store, path }
    }

    /// Returns the body, or `None` if the object does not exist.
    ///
    /// # Errors
    ///
    /// [`FenceError::Database`] if the store fails, or if the object has no
    /// token.
    pub async fn get(&self) -> Result<Option<Vec<u8>>, FenceError> {
        let stored = self.read().await?;
        Ok(stored.map(|stored| stored.body))
    }

    /// Replaces the body by `change` of the current one, unless a later holder
    /// has written.
    ///
    /// A write in between makes the store reject ours. The object is then read
    /// again, so `change` may be called more than once.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] if a later holder has written, and
    /// [`FenceError::Database`] if the store fails. After the latter, the
    /// object may have been written.
    pub async fn update(
        &self,
        fence: &Fence,
        mut change: impl FnMut(Option<&[u8]>) -> Vec<u8>,
    ) -> Result<(), FenceError> {
        loop {
            let stored = self.read().await?;
            let (body, mode) = match stored {
                Some(stored) => {
                    fence.check(stored.token)?;
                    (change(Some(&stored.body)), stored.mode)
                }
                None => (change(None), PutMode::Create),
            };
            let mut content = format!("{}\n", fence.token()).into_bytes();
            content.extend(body);
            let options = PutOptions::from(mode);
            let put = self.store.put_opts(&self.path, content.into(), options);
            match put.await {
                Ok(_) => return Ok(()),
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(FenceError::Database(error.into())),
            }
        }
    }

    async fn read(&self) -> Result<Option<Stored>, FenceError> {
        match self.store.get(&self.path).await {
            Ok(found) => parse(found).await.map(Some),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(FenceError::Database(error.into())),
        }
    }
}

async fn parse(found: GetResult) -> Result<Stored, FenceError> {
    let version = UpdateVersion {
        e_tag: found.meta.e_tag.clone(),
        version: found.meta.version.clone(),
    };
    let content = found.bytes().await;
    let content = content.map_err(|error| FenceError::Database(error.into()))?;
    let mut parts = content.splitn(2, |byte| *byte == b'\n');
    let token = parts.next().and_then(|line| std::str::from_utf8(line).ok());
    match (token.and_then(|token| token.parse().ok()), parts.next()) {
        (Some(token), Some(body)) => Ok(Stored {
            token,
            body: body.to_vec(),
            mode: PutMode::Update(version),
        }),
        _ => Err(FenceError::Database("the object has no token".into())),
    }
}
