//! No process has more connections to a server than the plan allows, whatever its tasks ask at the same time.

use super::Verdict;
use crate::plan::Plan;

/// Judges what each server was seen to have at the same time.
pub(crate) fn check(plan: &Plan, seen: &[u64]) -> Verdict {
    let mut verdict = Verdict::new("no process has too many connections");
    let most = plan.connections * plan.processes as u64;
    for count in seen.iter().filter(|_| most > 0) {
        verdict.looked_at += 1;
        if *count > most {
            verdict.wrong(|| format!("a server has {count} connections, and {most} are allowed"));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    #[test]
    fn too_many_connections_are_found() {
        let mut plan = plan_of(Kind::Mutex);
        assert_eq!(check(&plan, &[99]).looked_at, 0);
        (plan.connections, plan.processes) = (10, 2);
        assert_eq!(check(&plan, &[3, 20]).wrong, 0);
        assert_eq!(check(&plan, &[3, 21]).wrong, 1);
    }
}
