//! Programs that would work without the lock, and that the compiler stops.
//!
//! Every program is compiled twice: with the mistake denied it must not
//! compile, and otherwise it must. So no test passes because of a typing
//! error. The mistakes that only show at run time are in `tests/it/misuse.rs`.

macro_rules! before {
    () => {
        "use leasehold::{Client, Error, MultiLock};
        async fn work() {}
        async fn program(client: Client) -> Result<(), Error> {
            let mutex = client.mutex(\"report\");
        "
    };
}

macro_rules! after {
    () => {
        "
            work().await;
            Ok(())
        }"
    };
}

/// A program that does not compile, and what compiles in its place.
macro_rules! rejected {
    ($name:ident: $wrong:literal, $right:literal) => {
        mod $name {
            #[doc = concat!("```compile_fail\n", before!(), $wrong, after!(), "\n```")]
            const WRONG: () = ();
            #[doc = concat!("```no_run\n", before!(), $right, after!(), "\n```")]
            const RIGHT: () = ();
        }
    };
}

/// A program that a lint of rustc warns about.
macro_rules! warned {
    ($name:ident: $lint:literal, $wrong:literal) => {
        mod $name {
            #[doc = concat!("```compile_fail\n#![deny(", $lint, ")]\n", before!(), $wrong, after!(), "\n```")]
            const DENIED: () = ();
            #[doc = concat!("```no_run\n", before!(), $wrong, after!(), "\n```")]
            const ALLOWED: () = ();
        }
    };
}

// A copy of a guard would outlive the lock. A view of the lease does not hold
// it, and says so by its name.
rejected!(
    copied_guard: "let copy = mutex.lock().await?.clone();",
    "let copy = mutex.lock().await?.lease();"
);

// A released guard protects nothing.
rejected!(
    released_guard: "let guard = mutex.lock().await?; guard.release().await?; guard.check()?;",
    "let guard = mutex.lock().await?; guard.check()?; guard.release().await?;"
);

// Only the guard can be released, not each of its views.
rejected!(
    released_view: "let guard = mutex.lock().await?; guard.lease().release().await?;",
    "let guard = mutex.lock().await?; guard.lease().check()?;"
);

// A reader's token must not pass for that of an exclusive holder.
rejected!(
    reader_as_writer: "let guard: leasehold::Guard = client.rw_lock(\"report\").read().await?;",
    "let guard: leasehold::Guard = client.rw_lock(\"report\").write().await?;"
);

// Nothing is acquired. With a name that begins with `_` there is no warning,
// but the log names the line.
warned!(unawaited_lock_with_a_name: "unused_variables", "let guard = mutex.lock();");
warned!(unawaited_lock: "unused_must_use", "mutex.lock();");
warned!(unawaited_try_lock: "unused_must_use", "mutex.try_lock();");
warned!(
    unawaited_multi_lock: "unused_must_use",
    "MultiLock::new([mutex.lock(), client.fair_mutex(\"mail\").lock()]);"
);
warned!(unawaited_permit: "unused_must_use", "client.semaphore(\"mail\", 3).acquire();");
warned!(unawaited_campaign: "unused_must_use", "client.election(\"mail\").campaign();");

// The guard is dropped before the work.
warned!(unbound_guard: "unused_must_use", "mutex.lock().await?;");
warned!(unbound_guard_of_try_lock: "unused_must_use", "mutex.try_lock().await?;");
warned!(unbound_guard_of_a_thread: "unused_must_use", "mutex.lock().wait()?;");
warned!(unbound_multi_guard: "unused_must_use", "MultiLock::new([mutex.lock()]).await?;");
warned!(unbound_leader: "unused_must_use", "client.election(\"mail\").campaign().await?;");
warned!(
    unbound_run: "unused_must_use",
    "client.once(\"mail\", leasehold::Tick::now(std::time::Duration::MAX)).start().await?;"
);
// Our message tells not to do this. Only a lint that is off by default finds
// it.
warned!(guard_bound_to_underscore: "let_underscore_drop", "let _ = mutex.lock().await?;");

// Nothing is sent.
warned!(
    unawaited_release: "unused_must_use",
    "let guard = mutex.lock().await?; guard.release();"
);
warned!(
    unawaited_extend: "unused_must_use",
    "let guard = mutex.lock().await?; guard.extend(std::time::Duration::MAX);"
);
warned!(unawaited_shutdown: "unused_must_use", "client.shutdown(std::time::Duration::MAX);");
warned!(unawaited_connect: "unused_must_use", "Client::connect(\"redis://127.0.0.1/\");");

// Whether the lease was lost goes unnoticed.
warned!(
    unseen_check: "unused_must_use",
    "let guard = mutex.lock().await?; guard.check();"
);
warned!(
    unseen_release: "unused_must_use",
    "let guard = mutex.lock().await?; guard.release().await;"
);
warned!(unseen_run: "unused_must_use", "mutex.run(|_| work()).await;");
warned!(
    unseen_loss: "unused_must_use",
    "let guard = mutex.lock().await?; guard.lost();"
);
