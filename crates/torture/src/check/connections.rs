//! Checks that no process has more connections to a server than the plan
//! allows, however many requests it sends at the same time.

use super::verdict::Verdict;
use crate::plan::Plan;

/// Checks the connection counts of single servers.
pub(crate) fn check(plan: &Plan, counts: &[u64]) -> Verdict {
    let mut verdict = Verdict::new("the number of connections is bounded");
    let max = plan.max_connections * plan.processes as u64;
    for count in counts.iter().filter(|_| max > 0) {
        verdict.checked += 1;
        if *count > max {
            verdict.violation(|| {
                format!("a server has {count} connections, above the maximum of {max}")
            });
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    #[test]
    fn excess_connections_are_found() {
        let mut plan = plan_of(Kind::Mutex);
        assert_eq!(check(&plan, &[99]).checked, 0);
        (plan.max_connections, plan.processes) = (10, 2);
        assert_eq!(check(&plan, &[3, 20]).violations, 0);
        assert_eq!(check(&plan, &[3, 21]).violations, 1);
    }
}
