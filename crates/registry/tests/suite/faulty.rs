//! A store that counts, fails, dies, cuts, forgets how old things are, or does not know 'create if absent'.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Where a store dies: at its n-th request, before or after having done it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) at: u64,
    pub(crate) done: bool,
}

/// What a store does with 'create if absent'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Creation {
    /// As it should.
    Right,
    /// Ignores the condition.
    Overwrites,
    /// Answers 'exists already' and writes all the same.
    Lies,
    /// Does not know it.
    Unknown,
}

#[derive(Debug)]
struct State {
    requests: u64,
    log: Vec<String>,
    death: Option<Death>,
    dead: bool,
    /// One request in so many fails, half of them after having been done.
    fails: Option<(u32, ChaCha8Rng)>,
    /// So many reads break off in the middle.
    cuts: u32,
    /// So many creations are turned away with 'exists already' though nothing is there (two met, HTTP 409).
    conflicts: u32,
    creation: Creation,
    /// How many seconds older than they are objects seem, by prefix of their path.
    older: BTreeMap<String, i64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    state: Arc<Mutex<State>>,
    meeting: Option<Arc<tokio::sync::Barrier>>,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.inner)
    }
}

fn failure(what: &str) -> Error {
    Error::Generic { store: "faulty", source: what.to_owned().into() }
}

/// Whether the request is to be failed after having been done.
struct Fate {
    fail_after: Option<Error>,
}

impl Fate {
    fn end<T>(self, result: Result<T>) -> Result<T> {
        match self.fail_after {
            Some(e) => Err(e),
            None => result,
        }
    }
}

impl Faulty {
    pub(crate) fn over(inner: Arc<dyn ObjectStore>) -> Self {
        let state = State {
            requests: 0,
            log: Vec::new(),
            death: None,
            dead: false,
            fails: None,
            cuts: 0,
            conflicts: 0,
            creation: Creation::Right,
            older: BTreeMap::new(),
        };
        Self { inner, state: Arc::new(Mutex::new(state)), meeting: None }
    }

    /// Creations wait until so many of them are about to happen.
    pub(crate) fn meeting_of(mut self, writers: usize) -> Self {
        self.meeting = Some(Arc::new(tokio::sync::Barrier::new(writers)));
        self
    }

    pub(crate) fn dies(self, at: u64, done: bool) -> Self {
        self.state.lock().unwrap().death = Some(Death { at, done });
        self
    }

    pub(crate) fn fails_one_in(self, one_in: u32, seed: u64) -> Self {
        self.state.lock().unwrap().fails = Some((one_in, ChaCha8Rng::seed_from_u64(seed)));
        self
    }

    pub(crate) fn cuts(self, reads: u32) -> Self {
        self.state.lock().unwrap().cuts = reads;
        self
    }

    pub(crate) fn conflicts(self, creations: u32) -> Self {
        self.state.lock().unwrap().conflicts = creations;
        self
    }

    pub(crate) fn creates(self, creation: Creation) -> Self {
        self.state.lock().unwrap().creation = creation;
        self
    }

    /// Objects under a prefix seem older by so many seconds from now on; younger where negative.
    pub(crate) fn age(&self, prefix: &str, seconds: i64) {
        self.state.lock().unwrap().older.insert(prefix.to_owned(), seconds);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state.lock().unwrap().requests
    }

    pub(crate) fn dead(&self) -> bool {
        self.state.lock().unwrap().dead
    }

    /// The requests since the last call, as `verb path`.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    fn begin(&self, verb: &str, path: &Path) -> Result<Fate> {
        let mut state = self.state.lock().unwrap();
        if state.dead {
            return Err(failure("dead"));
        }
        state.requests += 1;
        state.log.push(format!("{verb} {path}"));
        if let Some(death) = state.death
            && state.requests == death.at
        {
            state.dead = true;
            let error = failure("killed");
            return if death.done { Ok(Fate { fail_after: Some(error) }) } else { Err(error) };
        }
        if let Some((one_in, random)) = &mut state.fails
            && random.random_ratio(1, *one_in)
        {
            let error = failure("one of those failures");
            return if random.random() { Ok(Fate { fail_after: Some(error) }) } else { Err(error) };
        }
        Ok(Fate { fail_after: None })
    }

    fn aged(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let state = self.state.lock().unwrap();
        for (prefix, seconds) in &state.older {
            if meta.location.as_ref().starts_with(prefix) {
                meta.last_modified -= chrono::Duration::seconds(*seconds);
            }
        }
        meta
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let create = matches!(options.mode, PutMode::Create);
        let fate = self.begin(if create { "CREATE" } else { "PUT" }, location)?;
        if create {
            if let Some(meeting) = &self.meeting {
                meeting.wait().await;
            }
            let exists = || Error::AlreadyExists { path: location.to_string(), source: "409".into() };
            let creation = {
                let mut state = self.state.lock().unwrap();
                if state.conflicts > 0 {
                    state.conflicts -= 1;
                    return Err(exists());
                }
                state.creation
            };
            match creation {
                Creation::Right => {}
                Creation::Overwrites => options.mode = PutMode::Overwrite,
                Creation::Lies => {
                    let there = self.inner.head(location).await.is_ok();
                    options.mode = PutMode::Overwrite;
                    let result = self.inner.put_opts(location, payload, options).await;
                    return if there { Err(exists()) } else { result };
                }
                Creation::Unknown => {
                    return Err(Error::NotImplemented { operation: "create".into(), implementer: "faulty".into() });
                }
            }
        }
        fate.end(self.inner.put_opts(location, payload, options).await)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let fate = self.begin("MULTIPART", location)?;
        let upload = self.inner.put_multipart_opts(location, options).await?;
        fate.end(Ok(Box::new(FaultyUpload { upload, store: self.clone(), location: location.clone() })))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fate = self.begin(if options.head { "HEAD" } else { "GET" }, location)?;
        let head = options.head;
        let mut result = fate.end(self.inner.get_opts(location, options).await)?;
        result.meta = self.aged(result.meta);
        let cut = {
            let mut state = self.state.lock().unwrap();
            let cut = !head && state.cuts > 0;
            state.cuts -= u32::from(cut);
            cut
        };
        if cut {
            let (meta, range, attributes) = (result.meta.clone(), result.range.clone(), result.attributes.clone());
            let bytes: Bytes = result.bytes().await?;
            let half = bytes.slice(..bytes.len() / 2);
            let broken = stream::iter([Ok(half), Err(failure("the connection was cut"))]).boxed();
            let payload = GetResultPayload::Stream(broken);
            return Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() });
        }
        Ok(result)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    let fate = store.begin("DELETE", &location)?;
                    fate.end(store.inner.delete(&location).await)?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.begin("LIST", prefix.unwrap_or(&Path::default())) {
            Ok(Fate { fail_after: None }) => {
                let store = self.clone();
                self.inner.list(prefix).map_ok(move |meta| store.aged(meta)).boxed()
            }
            Ok(Fate { fail_after: Some(e) }) | Err(e) => stream::once(async { Err(e) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let fate = self.begin("LIST", prefix.unwrap_or(&Path::default()))?;
        fate.end(self.inner.list_with_delimiter(prefix).await)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fate = self.begin("COPY", from)?;
        fate.end(self.inner.copy_opts(from, to, options).await)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let fate = self.begin("MOVE", from)?;
        fate.end(self.inner.rename_opts(from, to, options).await)
    }
}

#[derive(Debug)]
struct FaultyUpload {
    upload: Box<dyn MultipartUpload>,
    store: Faulty,
    location: Path,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match self.store.begin("PART", &self.location) {
            Ok(fate) => {
                let part = self.upload.put_part(data);
                Box::pin(async move { fate.end(part.await) })
            }
            Err(e) => Box::pin(async { Err(e) }),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let fate = self.store.begin("COMPLETE", &self.location)?;
        fate.end(self.upload.complete().await)
    }

    async fn abort(&mut self) -> Result<()> {
        let fate = self.store.begin("ABORT", &self.location)?;
        fate.end(self.upload.abort().await)
    }
}
