//! What this process has used: CPU time, memory and allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// Prints the CPU time in microseconds, the memory in KiB, and the number of
/// allocations.
pub(crate) fn print() {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let micros = cpu.tv_sec * 1_000_000 + cpu.tv_nsec / 1000;
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = statm.split(' ').nth(1).expect("the resident pages");
    let pages: u64 = pages.parse().expect("a number");
    println!("{micros} {} {}", pages * 4, allocations());
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator, which counts.
///
/// Each thread has a counter and a cache line of its own. One shared counter
/// would move between the cores with every allocation, and slow down the
/// contestants that we measure.
struct Counting;

#[repr(align(128))]
struct Counter(AtomicU64);

/// Threads beyond this many share the last counter.
const COUNTERS: usize = 256;

static COUNTS: [Counter; COUNTERS] = [const { Counter(AtomicU64::new(0)) }; COUNTERS];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Constant and without a destructor: reading it never allocates.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

fn allocations() -> u64 {
    let counts = COUNTS.iter().map(|count| count.0.load(Ordering::Relaxed));
    counts.sum()
}

fn count() {
    let thread = THREAD.get().unwrap_or_else(|| {
        let thread = THREADS.fetch_add(1, Ordering::Relaxed).min(COUNTERS - 1);
        THREAD.set(Some(thread));
        thread
    });
    let counter = &COUNTS[thread].0;
    if thread == COUNTERS - 1 {
        counter.fetch_add(1, Ordering::Relaxed);
    } else {
        // No other thread writes it, so we need no locked instruction.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

// SAFETY: All calls go to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        unsafe { System.dealloc(old, layout) }
    }
}
