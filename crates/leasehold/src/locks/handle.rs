//! The handle of a named lock, which every lock type wraps.

use std::panic::Location;
use std::sync::Arc;

use super::acquire::AcquireRequest;
use crate::error::Error;
use crate::info::Holder;
use crate::lease::Engine;
use crate::options::AcquireOptions;
use crate::protocol::{Call, Kind};

/// The handle of a lock of kind `K`. Creating one sends no request.
pub(crate) struct Handle<K: ?Sized> {
    pub(crate) engine: Arc<Engine>,
    kind: Result<Arc<K>, InvalidName>,
    /// Converts the kind into the form that the lease layer uses.
    as_kind: fn(Arc<K>) -> Arc<dyn Kind>,
    /// The default options of an acquire.
    options: AcquireOptions,
}

/// A name that cannot be used. It is reported when the lock is used, so that
/// creating a handle cannot fail.
#[derive(Clone)]
pub(crate) struct InvalidName {
    pub(crate) name: String,
    why: String,
}

impl InvalidName {
    pub(crate) fn new(name: &str, why: String) -> Self {
        let name = name.to_owned();
        Self { name, why }
    }

    pub(crate) fn error(&self) -> Error {
        Error::invalid("name", &self.why)
    }
}

impl<K: Kind> Handle<K> {
    pub(crate) fn new(
        engine: Arc<Engine>,
        name: &str,
        kind: Result<K, String>,
        options: &AcquireOptions,
    ) -> Self {
        Self {
            engine,
            kind: kind
                .map(Arc::new)
                .map_err(|why| InvalidName::new(name, why)),
            as_kind: |kind| kind,
            options: options.clone(),
        }
    }
}

impl Handle<dyn Kind> {
    /// Creates a handle that does not depend on the type of the kind.
    pub(crate) fn dynamic(
        engine: Arc<Engine>,
        name: &str,
        kind: Result<Arc<dyn Kind>, String>,
        options: &AcquireOptions,
    ) -> Self {
        Self {
            engine,
            kind: kind.map_err(|why| InvalidName::new(name, why)),
            as_kind: |kind| kind,
            options: options.clone(),
        }
    }
}

impl<K: Kind + ?Sized> Handle<K> {
    pub(crate) fn name(&self) -> &str {
        match &self.kind {
            Ok(kind) => kind.name(),
            Err(invalid) => &invalid.name,
        }
    }

    pub(crate) fn kind(&self) -> Result<Arc<K>, Error> {
        self.kind.clone().map_err(|invalid| invalid.error())
    }

    /// Returns the further calls of a lock, or why the name is invalid. They
    /// are present if the name is valid.
    pub(crate) fn beside<C>(&self, calls: &Option<Arc<C>>) -> Result<Arc<C>, Error> {
        match (calls, self.kind()) {
            (Some(calls), _) => Ok(calls.clone()),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => unreachable!("BUG: a valid name has calls"),
        }
    }

    /// Returns a request to acquire this lock.
    #[track_caller]
    pub(crate) fn request(&self) -> AcquireRequest {
        self.request_as(self.kind())
    }

    /// Returns a request to acquire this lock as `kind`, which can differ in
    /// the number of permits.
    #[track_caller]
    pub(crate) fn request_as(&self, kind: Result<Arc<K>, Error>) -> AcquireRequest {
        AcquireRequest {
            engine: self.engine.clone(),
            kind: kind.map(self.as_kind),
            options: AcquireOptions {
                caller: Location::caller(),
                ..self.options.clone()
            },
            reentry: None,
        }
    }

    pub(crate) async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.send(Kind::holder).await
    }

    /// Sends one call of this lock.
    pub(crate) async fn send<R>(&self, call: impl FnOnce(&K) -> Call<R>) -> Result<R, Error> {
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
