//! The trace store: one SQLite file with traces, evidence, plans, executions and memory.
//!
//! One transaction per run. The file is private (0600) and never reached through a link that the
//! caller did not name.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior, params};
use serde::Serialize;

use super::recent_command::RecentCommand;
use super::vocabulary::Action;

/// `PRAGMA user_version` of the schema.
const SCHEMA_VERSION: i64 = 1;
/// `PRAGMA application_id`: "BNHA".
const APPLICATION_ID: i64 = 0x424E_4841;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The path is a link.
    #[error("trace store {} is a symbolic link; give the file itself", path.display())]
    SymbolicLink {
        /// The path.
        path: PathBuf,
    },
    /// The path is no plain file.
    #[error("trace store {} is not a plain file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Others can read or write the file.
    #[error("trace store {} can be used by others (mode {mode:o}); chmod 600 it", path.display())]
    Permissions {
        /// The path.
        path: PathBuf,
        /// Its mode bits.
        mode: u32,
    },
    /// The file system refused.
    #[error("trace store {}: {source}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of another program, or of another version of this one.
    #[error(
        "this is no trace store of version {expected} (found application {application:#x}, version {version}); use another file"
    )]
    Foreign {
        /// Found application id.
        application: i64,
        /// Found version.
        version: i64,
        /// Our version.
        expected: i64,
    },
    /// SQLite refused.
    #[error("trace store: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A stored record cannot be read.
    #[error("trace store: record of {trace_id} is damaged: {reason}")]
    Damaged {
        /// The run.
        trace_id: String,
        /// Why.
        reason: String,
    },
}

impl StoreError {
    /// Is the file to blame, rather than the disk or another process?
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        use rusqlite::ErrorCode as C;
        match self {
            StoreError::File { .. } => false,
            StoreError::Sqlite(e) => matches!(e.sqlite_error_code(), Some(C::NotADatabase | C::DatabaseCorrupt)),
            _ => true,
        }
    }
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// Evidence of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Evidence {
    pub(crate) kind: &'static str,
    pub(crate) content: String,
}

/// A step of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) status: &'static str,
    pub(crate) detail: String,
}

/// Everything that one run leaves behind; written at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunRecord {
    pub(crate) trace_id: String,
    pub(crate) session: String,
    pub(crate) at_ms: i64,
    pub(crate) mode: &'static str,
    pub(crate) input: String,
    pub(crate) decision: &'static str,
    pub(crate) output: String,
    pub(crate) replay: String,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) steps: Vec<Step>,
    pub(crate) gates: Vec<(String, String, String)>,
    pub(crate) plan: Option<StoredPlan>,
    pub(crate) recent: Option<RecentCommand>,
    pub(crate) memory: Option<MemoryChange>,
}

/// A plan as stored: text and hash, to be compared, never to be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredPlan {
    pub(crate) json: String,
    pub(crate) hash: String,
}

/// A change of long-term memory.
#[derive(Debug, Clone)]
pub(crate) enum MemoryChange {
    Remember { key: String, alias: String, device_id: String },
    Forget { key: String },
}

/// A remembered name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RememberedAlias {
    /// As the user said it.
    pub alias: String,
    /// The device that it means.
    pub device_id: String,
    /// The run that stored it; its evidence holds the user's words.
    pub trace_id: String,
    /// When, Unix milliseconds.
    pub at_ms: i64,
}

/// A stored run.
#[derive(Debug, Clone)]
pub(crate) struct StoredTrace {
    pub(crate) session: String,
    pub(crate) at_ms: i64,
    pub(crate) output: String,
    pub(crate) replay: String,
    pub(crate) plan: Option<StoredPlan>,
}

/// A line of the trace list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceSummary {
    /// Id.
    pub trace_id: String,
    /// When, Unix milliseconds.
    pub at_ms: i64,
    /// Session.
    pub session: String,
    /// Kind of run.
    pub mode: String,
    /// Decision.
    pub decision: String,
    /// Input, clipped.
    pub input: String,
}

/// How an execution stands in the way of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    Granted(i64),
    AlreadyExecuted,
    TooSoon,
}

const SCHEMA: &str = "
CREATE TABLE traces (
  id TEXT PRIMARY KEY, session TEXT NOT NULL, at_ms INTEGER NOT NULL, mode TEXT NOT NULL,
  input TEXT NOT NULL, decision TEXT NOT NULL, output TEXT NOT NULL, replay TEXT NOT NULL) STRICT;
CREATE TABLE evidence (
  id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL REFERENCES traces(id), kind TEXT NOT NULL, content TEXT NOT NULL) STRICT;
CREATE TABLE steps (
  trace_id TEXT NOT NULL REFERENCES traces(id), position INTEGER NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL,
  detail TEXT NOT NULL, PRIMARY KEY (trace_id, position)) STRICT;
CREATE TABLE gate_checks (
  trace_id TEXT NOT NULL REFERENCES traces(id), position INTEGER NOT NULL, gate TEXT NOT NULL, outcome TEXT NOT NULL,
  reasons TEXT NOT NULL, PRIMARY KEY (trace_id, position)) STRICT;
CREATE TABLE plans (
  trace_id TEXT PRIMARY KEY REFERENCES traces(id), plan TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE TABLE executions (
  id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL REFERENCES traces(id), device_id TEXT NOT NULL, action TEXT NOT NULL,
  started_ms INTEGER NOT NULL, finished_ms INTEGER, status TEXT NOT NULL, message TEXT) STRICT;
CREATE INDEX executions_target ON executions (device_id, action, started_ms);
CREATE TABLE audit (
  id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, at_ms INTEGER NOT NULL, event TEXT NOT NULL, detail TEXT NOT NULL) STRICT;
CREATE TABLE recent_commands (
  id INTEGER PRIMARY KEY, session TEXT NOT NULL, trace_id TEXT NOT NULL, at_ms INTEGER NOT NULL, device_id TEXT NOT NULL,
  action TEXT NOT NULL) STRICT;
CREATE INDEX recent_session ON recent_commands (session, id);
CREATE TABLE aliases (
  key TEXT PRIMARY KEY, alias TEXT NOT NULL, device_id TEXT NOT NULL, trace_id TEXT NOT NULL, at_ms INTEGER NOT NULL) STRICT;
";

impl Store {
    /// A store that lives as long as the value.
    ///
    /// # Errors
    /// [`StoreError::Sqlite`].
    pub fn in_memory() -> Result<Self, StoreError> {
        Self::prepare(Connection::open_in_memory()?)
    }

    /// Opens or creates a store file with mode 0600.
    ///
    /// # Errors
    /// [`StoreError`]: a link, something that is no file, a file that others can use, a file of
    /// something else.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = |source| StoreError::File { path: path.to_owned(), source };
        // Links among the folders are resolved here, by name; the last part must not be one.
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name = path.file_name().ok_or_else(|| StoreError::NotAFile { path: path.to_owned() })?;
        let path = parent.canonicalize().map_err(file)?.join(name);
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.file_type().is_symlink() => return Err(StoreError::SymbolicLink { path }),
            Ok(metadata) if !metadata.is_file() => return Err(StoreError::NotAFile { path }),
            Ok(metadata) => {
                #[cfg(unix)]
                {
                    use std::os::unix::fs::PermissionsExt as _;
                    let mode = metadata.permissions().mode() & 0o777;
                    if mode & 0o077 != 0 {
                        return Err(StoreError::Permissions { path, mode });
                    }
                }
                #[cfg(not(unix))]
                let _ = metadata;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut options = std::fs::OpenOptions::new();
                options.write(true).create_new(true);
                #[cfg(unix)]
                {
                    use std::os::unix::fs::OpenOptionsExt as _;
                    options.mode(0o600);
                }
                options.open(&path).map_err(file)?;
            }
            Err(error) => return Err(file(error)),
        }
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        Self::prepare(Connection::open_with_flags(&path, flags)?)
    }

    fn prepare(mut connection: Connection) -> Result<Self, StoreError> {
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // The only file besides the store is SQLite's journal, gone after each transaction.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let application: i64 = transaction.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables == 0 && version == 0 && application == 0 {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        } else if version != SCHEMA_VERSION || application != APPLICATION_ID {
            return Err(StoreError::Foreign { application, version, expected: SCHEMA_VERSION });
        }
        transaction.commit()?;
        Ok(Store { connection })
    }

    /// Stops waiting for the disk: for a store that is thrown away, as in the gate.
    pub(crate) fn disposable(self) -> Result<Self, StoreError> {
        self.connection.pragma_update(None, "synchronous", "OFF")?;
        Ok(self)
    }

    /// Writes a whole run in one transaction.
    pub(crate) fn record(&mut self, run: &RunRecord) -> Result<(), StoreError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.prepare_cached("INSERT INTO traces VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?.execute(params![
            run.trace_id,
            run.session,
            run.at_ms,
            run.mode,
            run.input,
            run.decision,
            run.output,
            run.replay
        ])?;
        for evidence in &run.evidence {
            transaction
                .prepare_cached("INSERT INTO evidence (trace_id, kind, content) VALUES (?1, ?2, ?3)")?
                .execute(params![run.trace_id, evidence.kind, evidence.content])?;
        }
        for (position, step) in (0_i64..).zip(&run.steps) {
            transaction.prepare_cached("INSERT INTO steps VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(params![
                run.trace_id,
                position,
                step.name,
                step.status,
                step.detail
            ])?;
        }
        for (position, (gate, outcome, reasons)) in (0_i64..).zip(&run.gates) {
            transaction.prepare_cached("INSERT INTO gate_checks VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(params![
                run.trace_id,
                position,
                gate,
                outcome,
                reasons
            ])?;
        }
        if let Some(plan) = &run.plan {
            transaction.prepare_cached("INSERT INTO plans VALUES (?1, ?2, ?3)")?.execute(params![
                run.trace_id,
                plan.json,
                plan.hash
            ])?;
        }
        if let Some(recent) = &run.recent {
            transaction
                .prepare_cached("INSERT INTO recent_commands (session, trace_id, at_ms, device_id, action) VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![run.session, run.trace_id, run.at_ms, recent.device_id, recent.action.as_str()])?;
        }
        match &run.memory {
            Some(MemoryChange::Remember { key, alias, device_id }) => {
                // A plain INSERT: a name that another process stored meanwhile is an error, not lost.
                transaction.execute(
                    "INSERT INTO aliases VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![key, alias, device_id, run.trace_id, run.at_ms],
                )?;
            }
            Some(MemoryChange::Forget { key }) => {
                transaction.execute("DELETE FROM aliases WHERE key = ?1", params![key])?;
            }
            None => {}
        }
        transaction
            .prepare_cached("INSERT INTO audit (trace_id, at_ms, event, detail) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![run.trace_id, run.at_ms, run.mode, run.decision])?;
        transaction.commit()?;
        Ok(())
    }

    /// The newest commands of a session that are not older than `oldest_ms`, newest first.
    pub(crate) fn recent(
        &self,
        session: &str,
        oldest_ms: i64,
        now_ms: i64,
        limit: u32,
    ) -> Result<Vec<RecentCommand>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT trace_id, device_id, action FROM recent_commands
             WHERE session = ?1 AND at_ms BETWEEN ?2 AND ?3 ORDER BY id DESC LIMIT ?4",
        )?;
        let rows = statement.query_map(params![session, oldest_ms, now_ms, limit], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })?;
        let mut recent = Vec::new();
        for row in rows {
            let (trace_id, device_id, action) = row?;
            if let Some(action) = Action::from_word(&action) {
                recent.push(RecentCommand { trace_id, device_id, action });
            }
        }
        Ok(recent)
    }

    /// All remembered names, newest first.
    ///
    /// # Errors
    /// [`StoreError::Sqlite`].
    pub fn aliases(&self) -> Result<Vec<RememberedAlias>, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT alias, device_id, trace_id, at_ms FROM aliases ORDER BY at_ms DESC, key")?;
        let rows = statement.query_map([], |row| {
            Ok(RememberedAlias {
                alias: row.get(0)?,
                device_id: row.get(1)?,
                trace_id: row.get(2)?,
                at_ms: row.get(3)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Forgets a remembered name; `false` if there is none.
    ///
    /// # Errors
    /// [`StoreError::Sqlite`].
    pub fn forget(&mut self, alias: &str) -> Result<bool, StoreError> {
        Ok(self.connection.execute("DELETE FROM aliases WHERE key = ?1", params![super::text::alias_key(alias)])? > 0)
    }

    /// Forgets all names and all recent commands; traces stay.
    ///
    /// # Errors
    /// [`StoreError::Sqlite`].
    pub fn clear_memory(&mut self) -> Result<(), StoreError> {
        self.connection.execute_batch("BEGIN IMMEDIATE; DELETE FROM aliases; DELETE FROM recent_commands; COMMIT;")?;
        Ok(())
    }

    /// One stored run.
    pub(crate) fn trace(&self, trace_id: &str) -> Result<Option<StoredTrace>, StoreError> {
        let trace = self
            .connection
            .prepare_cached(
                "SELECT t.session, t.at_ms, t.output, t.replay, p.plan, p.hash FROM traces t
                 LEFT JOIN plans p ON p.trace_id = t.id WHERE t.id = ?1",
            )?
            .query_row(params![trace_id], |row| {
                let json: Option<String> = row.get(4)?;
                let hash: Option<String> = row.get(5)?;
                Ok(StoredTrace {
                    session: row.get(0)?,
                    at_ms: row.get(1)?,
                    output: row.get(2)?,
                    replay: row.get(3)?,
                    plan: json.zip(hash).map(|(json, hash)| StoredPlan { json, hash }),
                })
            })
            .optional()?;
        Ok(trace)
    }

    /// The newest runs, newest first.
    ///
    /// # Errors
    /// [`StoreError::Sqlite`].
    pub fn traces(&self, limit: u32) -> Result<Vec<TraceSummary>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, at_ms, session, mode, decision, input FROM traces ORDER BY rowid DESC LIMIT ?1",
        )?;
        let rows = statement.query_map(params![limit], |row| {
            let input: String = row.get(5)?;
            Ok(TraceSummary {
                trace_id: row.get(0)?,
                at_ms: row.get(1)?,
                session: row.get(2)?,
                mode: row.get(3)?,
                decision: row.get(4)?,
                input: super::text::clipped(&input, 60),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The whole stored run as JSON: output, steps, evidence, executions, audit events.
    ///
    /// # Errors
    /// [`StoreError`]; `Ok(None)` for an unknown id.
    pub fn trace_frame(&self, trace_id: &str) -> Result<Option<serde_json::Value>, StoreError> {
        let Some(trace) = self.trace(trace_id)? else { return Ok(None) };
        let rows = |sql: &str, columns: &[&str]| -> Result<Vec<serde_json::Value>, StoreError> {
            let mut statement = self.connection.prepare_cached(sql)?;
            let mut found = Vec::new();
            let mut rows = statement.query(params![trace_id])?;
            while let Some(row) = rows.next()? {
                let mut object = serde_json::Map::new();
                for (index, column) in columns.iter().enumerate() {
                    let value = match row.get_ref(index)? {
                        rusqlite::types::ValueRef::Integer(n) => serde_json::json!(n),
                        rusqlite::types::ValueRef::Text(text) => serde_json::json!(String::from_utf8_lossy(text)),
                        _ => serde_json::Value::Null,
                    };
                    object.insert((*column).to_owned(), value);
                }
                found.push(serde_json::Value::Object(object));
            }
            Ok(found)
        };
        let output: serde_json::Value = serde_json::from_str(&trace.output)
            .map_err(|e| StoreError::Damaged { trace_id: trace_id.to_owned(), reason: e.to_string() })?;
        Ok(Some(serde_json::json!({
            "trace_id": trace_id,
            "session": trace.session,
            "at_ms": trace.at_ms,
            "output": output,
            "steps": rows("SELECT name, status, detail FROM steps WHERE trace_id = ?1 ORDER BY position", &["name", "status", "detail"])?,
            "evidence": rows("SELECT kind, content FROM evidence WHERE trace_id = ?1 ORDER BY id", &["kind", "content"])?,
            "executions": rows("SELECT device_id, action, started_ms, finished_ms, status, message FROM executions WHERE trace_id = ?1 ORDER BY id",
                &["device_id", "action", "started_ms", "finished_ms", "status", "message"])?,
            "audit": rows("SELECT at_ms, event, detail FROM audit WHERE trace_id = ?1 ORDER BY id", &["at_ms", "event", "detail"])?,
        })))
    }

    /// Whether a run was executed, or was begun and never finished.
    pub(crate) fn was_executed(&self, trace_id: &str) -> Result<bool, StoreError> {
        Ok(self
            .connection
            .prepare_cached("SELECT count(*) FROM executions WHERE trace_id = ?1 AND status <> 'failed'")?
            .query_row(params![trace_id], |row| row.get::<_, i64>(0))?
            > 0)
    }

    /// Whether an action on a device was begun within `interval_ms` of `now_ms`.
    pub(crate) fn too_soon(
        &self,
        device_id: &str,
        action: Action,
        now_ms: i64,
        interval_ms: i64,
    ) -> Result<bool, StoreError> {
        Ok(self
            .connection
            .prepare_cached(
                "SELECT count(*) FROM executions WHERE device_id = ?1 AND action = ?2 AND abs(?3 - started_ms) < ?4",
            )?
            .query_row(params![device_id, action.as_str(), now_ms, interval_ms], |row| row.get::<_, i64>(0))?
            > 0)
    }

    /// Reserves an execution before the back end is called, so that two processes cannot both do it.
    pub(crate) fn claim(
        &mut self,
        trace_id: &str,
        device_id: &str,
        action: Action,
        now_ms: i64,
        interval_ms: i64,
    ) -> Result<Claim, StoreError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let executed: i64 = transaction.query_row(
            "SELECT count(*) FROM executions WHERE trace_id = ?1 AND status <> 'failed'",
            params![trace_id],
            |row| row.get(0),
        )?;
        if executed > 0 {
            return Ok(Claim::AlreadyExecuted);
        }
        let soon: i64 = transaction.query_row(
            "SELECT count(*) FROM executions WHERE device_id = ?1 AND action = ?2 AND abs(?3 - started_ms) < ?4",
            params![device_id, action.as_str(), now_ms, interval_ms],
            |row| row.get(0),
        )?;
        if soon > 0 {
            return Ok(Claim::TooSoon);
        }
        transaction.execute(
            "INSERT INTO executions (trace_id, device_id, action, started_ms, status) VALUES (?1, ?2, ?3, ?4, 'started')",
            params![trace_id, device_id, action.as_str(), now_ms],
        )?;
        let id = transaction.last_insert_rowid();
        transaction.commit()?;
        Ok(Claim::Granted(id))
    }

    /// Notes how a claimed execution ended.
    pub(crate) fn finish(&mut self, claim: i64, now_ms: i64, succeeded: bool, message: &str) -> Result<(), StoreError> {
        self.connection.execute(
            "UPDATE executions SET finished_ms = ?2, status = ?3, message = ?4 WHERE id = ?1",
            params![claim, now_ms, if succeeded { "succeeded" } else { "failed" }, super::text::clipped(message, 500)],
        )?;
        Ok(())
    }

    /// Adds an audit event.
    pub(crate) fn audit(&mut self, trace_id: &str, at_ms: i64, event: &str, detail: &str) -> Result<(), StoreError> {
        self.connection
            .prepare_cached("INSERT INTO audit (trace_id, at_ms, event, detail) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![trace_id, at_ms, event, super::text::clipped(detail, 1000)])?;
        Ok(())
    }

    /// Plants a changed plan under its old hash, for the opt-in matrix.
    pub(crate) fn rewrite_plan(&self, trace_id: &str, change: impl Fn(&str) -> String) -> Result<(), StoreError> {
        let plan: String =
            self.connection
                .query_row("SELECT plan FROM plans WHERE trace_id = ?1", params![trace_id], |row| row.get(0))?;
        self.connection.execute("UPDATE plans SET plan = ?2 WHERE trace_id = ?1", params![trace_id, change(&plan)])?;
        Ok(())
    }

    /// Plants a changed plan with a hash that fits it, for the opt-in matrix.
    pub(crate) fn rewrite_plan_and_hash(
        &self,
        trace_id: &str,
        change: impl Fn(&str) -> String,
    ) -> Result<(), StoreError> {
        self.rewrite_plan(trace_id, change)?;
        let plan: String =
            self.connection
                .query_row("SELECT plan FROM plans WHERE trace_id = ?1", params![trace_id], |row| row.get(0))?;
        let hash = blake3::hash(plan.as_bytes()).to_hex().to_string();
        self.connection.execute("UPDATE plans SET hash = ?2 WHERE trace_id = ?1", params![trace_id, hash])?;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn tamper(&self, sql: &str) {
        self.connection.execute_batch(sql).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_private_and_the_only_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("traces.sqlite");
        let mut store = Store::open(&path).unwrap();
        store.record(&RunRecord { trace_id: "tr_1".into(), ..RunRecord::default() }).unwrap();
        drop(store);
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["traces.sqlite"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            assert!(matches!(Store::open(&path), Err(StoreError::Permissions { mode: 0o644, .. })));
        }
    }

    #[test]
    #[cfg(unix)]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("elsewhere.sqlite");
        let link = dir.path().join("traces.sqlite");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(Store::open(&link), Err(StoreError::SymbolicLink { .. })));
        assert!(!target.exists());
        assert!(matches!(Store::open(dir.path()), Err(StoreError::NotAFile { .. })));
    }

    #[test]
    fn foreign_and_newer_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("traces.sqlite");
        Store::open(&path).unwrap().tamper("PRAGMA user_version = 2");
        assert!(matches!(Store::open(&path), Err(StoreError::Foreign { version: 2, .. })));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let text = dir.path().join("text");
            std::fs::write(&text, "this is no database, only text that is long enough to be read as one".repeat(20))
                .unwrap();
            std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(Store::open(&text), Err(StoreError::Sqlite(_))));
        }
    }

    /// W14: recent commands belong to a session and an age.
    #[test]
    fn w14_recent_commands_have_session_and_age() {
        let mut store = Store::in_memory().unwrap();
        for (id, session, at_ms) in [("a", "s", 1000), ("b", "s", 2000), ("c", "other", 3000), ("d", "s", 9000)] {
            store
                .record(&RunRecord {
                    trace_id: id.into(),
                    session: session.into(),
                    at_ms,
                    recent: Some(RecentCommand {
                        trace_id: id.into(),
                        device_id: format!("dev_{id}"),
                        action: Action::TurnOn,
                    }),
                    ..RunRecord::default()
                })
                .unwrap();
        }
        let ids = |oldest, now, limit| -> Vec<String> {
            store.recent("s", oldest, now, limit).unwrap().into_iter().map(|r| r.trace_id).collect()
        };
        assert_eq!(ids(0, 5000, 3), ["b", "a"], "not of another session, not from the future");
        assert_eq!(ids(1500, 9000, 3), ["d", "b"]);
        assert_eq!(ids(0, 9000, 1), ["d"]);
    }

    /// W13: claims live in the file, so they hold between processes, and a failure frees the run.
    #[test]
    fn w13_claims_are_persistent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("traces.sqlite");
        let mut store = Store::open(&path).unwrap();
        for id in ["a", "b"] {
            store.record(&RunRecord { trace_id: id.into(), ..RunRecord::default() }).unwrap();
        }
        let Claim::Granted(claim) = store.claim("a", "lamp", Action::TurnOn, 10_000, 1000).unwrap() else { panic!() };
        drop(store);
        let mut store = Store::open(&path).unwrap();
        assert_eq!(store.claim("a", "lamp", Action::TurnOff, 90_000, 1000).unwrap(), Claim::AlreadyExecuted);
        assert_eq!(store.claim("b", "lamp", Action::TurnOn, 10_999, 1000).unwrap(), Claim::TooSoon);
        assert!(matches!(store.claim("b", "lamp", Action::TurnOn, 11_000, 1000).unwrap(), Claim::Granted(_)));
        store.finish(claim, 10_001, false, "down").unwrap();
        assert!(!store.was_executed("a").unwrap());
    }
}
