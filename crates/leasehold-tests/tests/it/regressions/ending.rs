//! Bugs of how a lease ends: a revocation, a release or a shutdown beside
//! another feature.

use leasehold::{Acquire, Loss};

use crate::support::inspection::allow_inspection;
use crate::support::{AMPLE, LEASE, builder_at, client, key, name, run, server};

/// A lease that `at_most` limits was not renewed, and so its holder never
/// noticed that it was revoked.
#[test]
fn revocation_reaches_holder_with_at_most() {
    type Limit = fn(Acquire) -> Acquire;
    const LIMITS: [Limit; 4] = [
        |lock| lock.at_most(AMPLE),
        |lock| lock.at_most(AMPLE / 2),
        |lock| lock.fixed_lease(AMPLE).at_most(AMPLE),
        |lock| lock.fixed_lease(AMPLE * 2).at_most(AMPLE),
    ];
    run(async {
        let server = server();
        allow_inspection(&server);
        let ours = builder_at(server.port()).lease(AMPLE);
        let ours = ours.connect().await.unwrap();
        let theirs = client(&server).await;
        for limit in LIMITS {
            let name = name();
            for lock in [ours.mutex(&name).lock(), ours.fair_mutex(&name).lock()] {
                let guard = limit(lock).await.unwrap();
                // Nor by an extension, which `at_most` makes impossible.
                guard.extend(AMPLE).await.unwrap();
                assert_eq!(theirs.force_release(&name).await.unwrap().len(), 1);
                assert_eq!(guard.lost().await, Some(Loss::Revoked));
            }
        }
    });
}

/// The same without a message: the lock is found to be gone by a renewal.
#[test]
fn lost_data_is_noticed_with_at_most() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().at_most(LEASE).await.unwrap();
        server.tell(&["DEL", &key(&name)]);
        assert_eq!(guard.lost().await, Some(Loss::Revoked));
    });
}
