//! Work on several threads where the system gives them, on fewer where it does not.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs each job, on a thread of its own as far as threads can be made, and returns what they gave, in order.
///
/// The standard library's way to start a thread panics where the system has none left (`ulimit -u`, `ulimit -v`); here
/// the threads that there are do all of the work.
pub fn in_parallel<T: Send, J: FnOnce() -> T + Send>(jobs: impl IntoIterator<Item = J>) -> Vec<T> {
    let jobs: Vec<J> = jobs.into_iter().collect();
    let most_helpers = jobs.len().saturating_sub(1);
    let jobs = Mutex::new(jobs.into_iter().enumerate());
    let work = || {
        let mut done = Vec::new();
        loop {
            // In a statement of its own: the lock is not held while the job runs.
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
            match next {
                Some((i, job)) => done.push((i, job())),
                None => return done,
            }
        }
    };
    let mut done = thread::scope(|scope| {
        let helper = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (0..most_helpers).map_while(helper).collect();
        let mut done = work();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, value)| value).collect()
}

/// Whether a thread can be made now.
pub fn can_be_made() -> bool {
    thread::Builder::new().spawn(|| ()).is_ok_and(|made| made.join().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once_and_the_order_stays() {
        let mut cells = vec![0u32; 100];
        let jobs = cells.iter_mut().zip(0..).map(|(cell, i)| {
            move || {
                *cell += i;
                i
            }
        });
        assert_eq!(in_parallel(jobs), (0..100).collect::<Vec<u32>>());
        assert_eq!(cells, (0..100).collect::<Vec<u32>>());
        assert!(in_parallel(Vec::<fn() -> u8>::new()).is_empty());
    }

    #[test]
    #[should_panic(expected = "of a job")]
    fn a_panic_of_a_job_is_the_callers() {
        in_parallel((0..4).map(|i| move || assert!(i != 3, "of a job")));
    }

    /// The stack of every thread is 1 GiB here, by the variable that the standard library reads once, so that a limit
    /// on the address space leaves room for none. A process of its own: see [`child`].
    #[test]
    fn without_threads_the_work_is_done_on_this_one() {
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", "ulimit -v 1000000; exec \"$@\"", "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "threads::tests::child", "--nocapture", "--test-threads=1"]);
        let ended = command.env("FILES_CHILD", "1").env("RUST_MIN_STACK", "1073741824").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(said.contains("none can be made: [0, 1, 4, 9]"), "{said} {}", String::from_utf8_lossy(&ended.stderr));
    }

    /// Not a test: the child of [`without_threads_the_work_is_done_on_this_one`].
    #[test]
    #[ignore = "a child of another test"]
    fn child() {
        if std::env::var_os("FILES_CHILD").is_some() && !can_be_made() {
            println!("none can be made: {:?}", in_parallel((0..4).map(|i| move || i * i)));
        }
    }
}
