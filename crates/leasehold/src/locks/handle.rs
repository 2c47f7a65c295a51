//! A name and the way to its lock: what the handles of all kinds are made of.

use std::sync::Arc;

use super::acquire::AcquireRequest;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::Engine;
use crate::options::AcquireOptions;
use crate::protocol::{Call, Kind};

/// Some kind of lock by its name. Costs nothing; makes no request until it is used.
pub(super) struct Handle<K: ?Sized> {
    pub(super) engine: Arc<Engine>,
    /// Or the name that cannot be one and why, which is told when the lock is used.
    kind: Result<Arc<K>, (String, String)>,
    /// The kind as the lease layer sees it.
    as_kind: fn(Arc<K>) -> Arc<dyn Kind>,
    /// What an acquisition starts from.
    options: AcquireOptions,
}

impl<K: Kind> Handle<K> {
    pub(super) fn new(
        engine: Arc<Engine>,
        name: &str,
        kind: Result<K, String>,
        options: &AcquireOptions,
    ) -> Self {
        Self {
            engine,
            kind: kind.map(Arc::new).map_err(|why| (name.to_owned(), why)),
            as_kind: |kind| kind,
            options: options.clone(),
        }
    }
}

impl Handle<dyn Kind> {
    /// For a lock that is used in the same way whichever family it is of.
    pub(super) fn of_any(
        engine: Arc<Engine>,
        name: &str,
        kind: Result<Arc<dyn Kind>, String>,
        options: &AcquireOptions,
    ) -> Self {
        Self {
            engine,
            kind: kind.map_err(|why| (name.to_owned(), why)),
            as_kind: |kind| kind,
            options: options.clone(),
        }
    }
}

impl<K: Kind + ?Sized> Handle<K> {
    pub(super) fn name(&self) -> &str {
        match &self.kind {
            Ok(kind) => kind.name(),
            Err((name, _)) => name,
        }
    }

    pub(super) fn kind(&self) -> Result<Arc<K>, Error> {
        match &self.kind {
            Ok(kind) => Ok(kind.clone()),
            Err((_, why)) => Err(Error::invalid("name", why)),
        }
    }

    /// An acquisition of this lock.
    pub(super) fn request(&self) -> AcquireRequest {
        self.request_as(self.kind())
    }

    /// An acquisition of this lock as `kind` takes it.
    pub(super) fn request_as(&self, kind: Result<Arc<K>, Error>) -> AcquireRequest {
        AcquireRequest {
            engine: self.engine.clone(),
            kind: kind.map(self.as_kind),
            options: self.options.clone(),
            reentry: None,
        }
    }

    pub(super) async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.query(Kind::holder).await
    }

    /// Sends one call of this lock's.
    pub(super) async fn query<R>(&self, call: impl FnOnce(&K) -> Call<R>) -> Result<R, Error> {
        let kind = self.kind()?;
        let call = call(&kind);
        self.engine.send(kind.slot(), kind.name(), call).await
    }
}

impl<K: ?Sized> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            kind: self.kind.clone(),
            as_kind: self.as_kind,
            options: self.options.clone(),
        }
    }
}
