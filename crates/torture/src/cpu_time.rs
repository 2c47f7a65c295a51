//! CPU time of the machine, and how much of it the hypervisor stole.

/// CPU time of all processors together in ticks, since boot or between two
/// samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    pub(crate) total: u64,
    /// Time for which some process was runnable, including stolen time.
    pub(crate) demanded: u64,
    /// Time that the hypervisor gave to other machines.
    pub(crate) stolen: u64,
}

impl CpuTime {
    /// Samples the time since boot; zero if the system does not report it.
    pub(crate) fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Returns the time between an earlier sample and this one.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            demanded: self.demanded.saturating_sub(earlier.demanded),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }

    /// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait,
    /// irq, softirq, steal.
    fn parse(stat: &str) -> Self {
        let words = stat.split_whitespace().skip(1).take(8);
        let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, stolen] = times[..] else {
            let (total, demanded, stolen) = (0, 0, 0);
            return Self {
                total,
                demanded,
                stolen,
            };
        };
        let demanded = user + nice + system + irq + softirq + stolen;
        let total = demanded + idle + iowait;
        Self {
            total,
            demanded,
            stolen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_measured() {
        let at = |idle, stolen| {
            CpuTime::parse(&format!("cpu  10 0 5 {idle} 1 2 0 {stolen} 0 0\ncpu0 1"))
        };
        let passed = at(105, 95).since(at(100, 50));
        assert_eq!((passed.total, passed.demanded, passed.stolen), (50, 45, 45));
        let nothing = CpuTime::parse("").since(at(1, 1));
        assert_eq!((nothing.total, nothing.demanded, nothing.stolen), (0, 0, 0));
    }
}
