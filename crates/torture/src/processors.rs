//! What was wanted of the machine's processors, and what of it the hypervisor gave to others.

/// Of all processors together, in ticks: since the machine's start, or between two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processors {
    /// All the time there was.
    pub(crate) all: u64,
    /// What of it somebody here wanted to run in.
    pub(crate) wanted: u64,
    /// What of that went to others.
    pub(crate) stolen: u64,
}

impl Processors {
    /// Since the machine's start; nothing where that is not told.
    pub(crate) fn now() -> Self {
        Self::read(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// What has passed since an earlier moment.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            all: self.all.saturating_sub(earlier.all),
            wanted: self.wanted.saturating_sub(earlier.wanted),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }

    /// By the first line: user, nice, system, idle, waiting for disks, interrupts of two sorts, stolen.
    fn read(stat: &str) -> Self {
        let words = stat.split_whitespace().skip(1).take(8);
        let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, disks, hard, soft, stolen] = times[..] else {
            let (all, wanted, stolen) = (0, 0, 0);
            return Self {
                all,
                wanted,
                stolen,
            };
        };
        let wanted = user + nice + system + hard + soft + stolen;
        let all = wanted + idle + disks;
        Self {
            all,
            wanted,
            stolen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_to_others_is_seen() {
        let at = |idle, stolen| {
            Processors::read(&format!("cpu  10 0 5 {idle} 1 2 0 {stolen} 0 0\ncpu0 1"))
        };
        let passed = at(105, 95).since(at(100, 50));
        assert_eq!((passed.all, passed.wanted, passed.stolen), (50, 45, 45));
        let nothing = Processors::read("").since(at(1, 1));
        assert_eq!((nothing.all, nothing.wanted, nothing.stolen), (0, 0, 0));
    }
}
