//! Outages: periods in which the servers, the network, the machine or the
//! waiters could not make progress.

use std::time::Duration;

use super::spans::{Span, merged};
use crate::fault_log::InjectedFault;
use crate::plan::{Fault, Plan, Topology};

/// How long all clients may take to reconnect after an outage.
const RECOVERY: u64 = 500_000_000;

/// Returns the outages of a run. A quorum tolerates faults of two servers, and
/// a restarted server is quarantined for a while.
pub(super) fn outages(plan: &Plan, faults: &[InjectedFault]) -> Vec<Span> {
    let quarantine = plan.max_lease() + Duration::from_secs(2);
    let span = |fault: &InjectedFault| match (plan.topology, fault.fault) {
        (Topology::Quorum, Fault::RestartServer) => {
            (fault.from, fault.until + quarantine.as_nanos() as u64)
        }
        _ => (fault.from, fault.until + RECOVERY),
    };
    let outages = faults.iter().filter(|fault| is_outage(fault.fault));
    if plan.topology != Topology::Quorum {
        return merged(outages.map(span).collect());
    }
    let (of_all, of_servers): (Vec<&InjectedFault>, Vec<&InjectedFault>) =
        outages.partition(|fault| matches!(fault.fault, Fault::PauseWorker | Fault::CpuSteal));
    let mut spans = at_least_three(of_servers.into_iter().map(span));
    spans.extend(of_all.into_iter().map(span));
    merged(spans)
}

/// Returns when three or more of the spans overlap.
fn at_least_three(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let ends = spans.flat_map(|(from, until)| [(from, 1), (until, -1)]);
    let mut ends: Vec<(u64, i32)> = ends.collect();
    ends.sort_unstable();
    let (mut depth, mut found) = (0, Vec::new());
    for pair in ends.windows(2) {
        depth += pair[0].1;
        if depth >= 3 {
            found.push((pair[0].0, pair[1].0));
        }
    }
    found
}

/// Returns whether a fault prevents requests from completing.
fn is_outage(fault: Fault) -> bool {
    !matches!(
        fault,
        Fault::KillWorker
            | Fault::Disconnect
            | Fault::FlushScripts
            | Fault::KillClients
            | Fault::KillSubscribers
            | Fault::FlushAll
            | Fault::ResetSentinel
            | Fault::PauseSentinel
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorum_tolerates_two_faulty_servers() {
        let spans = [(1, 9), (2, 8), (4, 6), (5, 7)];
        assert_eq!(at_least_three(spans[..2].iter().copied()), []);
        assert_eq!(merged(at_least_three(spans.into_iter())), [(4, 7)]);
    }
}
