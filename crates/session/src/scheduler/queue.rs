//! Who is next: fair between owners, cartridge by cartridge within reason.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::job::Job;
use super::types::SharedCartridge;

/// How often a request may be passed over by a later one that shares a cartridge with answers on their way.
const PATIENCE: u32 = 8;

pub(crate) struct Waiting {
    pub(crate) job: Job,
    passed_over: u32,
}

impl Waiting {
    pub(crate) fn new(job: Job) -> Self {
        Self { job, passed_over: 0 }
    }
}

/// Requests in the order in which they came.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Waiting>,
    /// When each owner was last served, in counts of requests.
    served: BTreeMap<u64, u64>,
    count: u64,
}

/// What decides between two requests, smaller first: somebody who was passed over too often, owners with fewer answers
/// on their way, cartridges in use, owners who were served longer ago, the older request.
type Rank = (bool, usize, bool, u64, u64);

impl Queue {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Job> {
        let at = self.waiting.iter().position(|w| w.job.id == id)?;
        self.waiting.remove(at).map(|w| w.job)
    }

    /// Takes out what is not to be served any more.
    pub(crate) fn remove_if(&mut self, gone: impl Fn(&Job) -> bool) -> Vec<Job> {
        let (out, rest) = self.waiting.drain(..).partition(|w| gone(&w.job));
        self.waiting = rest;
        let out: VecDeque<Waiting> = out;
        out.into_iter().map(|w| w.job).collect()
    }

    /// The request that is next. `running` counts an owner's answers on their way, `active` knows the cartridges in use
    /// (`None` is the use of none).
    pub(crate) fn next(
        &self,
        running: &BTreeMap<u64, usize>,
        active: &dyn Fn(Option<&Arc<SharedCartridge>>) -> bool,
    ) -> Option<u64> {
        let rank = |w: &Waiting| -> Rank {
            let r = &w.job.request;
            (
                w.passed_over < PATIENCE,
                running.get(&r.owner).copied().unwrap_or(0),
                !active(r.cartridge.as_ref()),
                self.served.get(&r.owner).copied().unwrap_or(0),
                w.job.id,
            )
        };
        self.waiting.iter().min_by_key(|w| rank(w)).map(|w| w.job.id)
    }

    /// Takes a request back that found no room; it keeps its place.
    pub(crate) fn put_back(&mut self, job: Job) {
        let at = self.waiting.iter().position(|w| w.job.id > job.id).unwrap_or(self.waiting.len());
        // Whatever it was passed over for has its place by now; it is next.
        self.waiting.insert(at, Waiting { job, passed_over: PATIENCE });
    }

    /// Takes the request that [`Queue::next`] named, and notes whom it passed over.
    pub(crate) fn take(&mut self, id: u64) -> Option<Job> {
        let job = self.remove(id)?;
        for older in self.waiting.iter_mut().filter(|w| w.job.id < id) {
            older.passed_over += 1;
        }
        self.count += 1;
        self.served.insert(job.request.owner, self.count);
        // Owners are keys of a server: few. Should they be many, the ones that were not seen for longest are new again.
        if self.served.len() > 4096 {
            let middle = self.count.saturating_sub(2048);
            self.served.retain(|_, at| *at > middle);
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;
    use crate::scheduler::Request;

    fn job(id: u64, owner: u64) -> Waiting {
        Waiting::new(Job {
            id,
            request: Request { owner, ..Request::new(Vec::new()) },
            max_tokens: 1,
            selectors: Vec::new(),
            sink: Box::new(|_| true),
            cancelled: Arc::new(AtomicBool::new(false)),
            submitted: Instant::now(),
        })
    }

    fn order(owners: &[u64]) -> Vec<u64> {
        let mut queue = Queue::default();
        for (id, owner) in (0u64..).zip(owners) {
            queue.push(job(id, *owner));
        }
        let mut out = Vec::new();
        while let Some(id) = queue.next(&BTreeMap::new(), &|_| true) {
            out.push(queue.take(id).unwrap().request.owner);
        }
        out
    }

    #[test]
    fn owners_take_turns_however_many_requests_one_of_them_has() {
        assert_eq!(order(&[1, 1, 1, 1, 2, 3]), [1, 2, 3, 1, 1, 1]);
        assert_eq!(order(&[5, 5, 6, 6]), [5, 6, 5, 6]);
    }

    #[test]
    fn who_has_fewer_answers_on_their_way_is_first() {
        let mut queue = Queue::default();
        queue.push(job(0, 1));
        queue.push(job(1, 2));
        assert_eq!(queue.next(&BTreeMap::from([(1, 2), (2, 1)]), &|_| true), Some(1));
    }

    #[test]
    fn nobody_is_passed_over_for_ever() {
        let mut queue = Queue::default();
        queue.push(job(0, 1));
        let mut served = Vec::new();
        for id in 1..=u64::from(PATIENCE) + 1 {
            queue.push(job(id, 2));
            // Owner 1 has answers on their way, owner 2 none.
            let next = queue.next(&BTreeMap::from([(1, 9)]), &|_| true).unwrap();
            served.push(queue.take(next).unwrap().id);
        }
        assert_eq!(served.iter().position(|id| *id == 0), Some(PATIENCE as usize));
    }

    #[test]
    fn what_is_cancelled_leaves_from_any_place() {
        let mut queue = Queue::default();
        (0..3).for_each(|id| queue.push(job(id, 1)));
        assert!(queue.remove(1).is_some());
        assert!(queue.remove(1).is_none());
        assert_eq!(queue.remove_if(|j| j.id == 2).len(), 1);
        assert_eq!(queue.len(), 1);
    }
}
