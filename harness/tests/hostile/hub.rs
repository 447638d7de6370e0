//! `model pull` from a hub that lies: lengths, hashes, names, redirects, answers without an end.
//!
//! One server for the whole table, on this machine; the repository's name says how it behaves.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::attempt::{Attempt, harness};
use crate::special_files::fifo;

const AREA: &str = "hub";
const COMMIT: &str = "0123456789012345678901234567890123456789";
pub(crate) const BODY: &[u8] = b"GGUF, or so it says\n";
/// By `printf 'GGUF, or so it says\n' | sha256sum`.
const SHA256: &str = "681e4425c5e753f9dadd822ddbe83be1d6ea3feda366bf5f88c315d6078872ff";
/// What an unfinished download is called.
pub(crate) const PART: &str = ".m.gguf.681e4425c5e7.part";

pub(crate) fn endpoint() -> &'static str {
    static ENDPOINT: OnceLock<String> = OnceLock::new();
    ENDPOINT.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that has had enough closes the connection: that is the point of most of these.
                std::thread::spawn(move || answer(stream));
            }
        });
        format!("http://{address}")
    })
}

fn entry(name: &str) -> Value {
    json!({"rfilename": name, "size": BODY.len(), "lfs": {"sha256": SHA256, "size": BODY.len(), "pointerSize": 1}})
}

fn listing(siblings: Value) -> Vec<u8> {
    json!({"sha": COMMIT, "siblings": siblings}).to_string().into_bytes()
}

/// The listing of a repository, where its name asks for another one than the sound one.
fn listing_of(manner: &str) -> Vec<u8> {
    let named = |name: &str| listing(json!([entry(name)]));
    let with = |field: &str, value: Value| {
        let mut one = entry("m.gguf");
        match field {
            "size" | "sha256" => one["lfs"][field] = value,
            _ => one[field] = value,
        }
        listing(json!([one]))
    };
    match manner {
        "html" => b"<!DOCTYPE html><html><body>Sign in</body></html>".to_vec(),
        "empty" => Vec::new(),
        "no-list" => b"{\"sha\": 7}".to_vec(),
        "deep" => "[".repeat(100_000).into_bytes(),
        "no-files" => listing(json!([])),
        "other-files" => named("README.md"),
        "parent" => named("../m.gguf"),
        "absolute" => named("/tmp/m.gguf"),
        "inner-parent" => named("a/../../m.gguf"),
        "dot" => named("./m.gguf"),
        "no-name" => named(""),
        "backslash" => named("..\\m.gguf"),
        "nul" => named("a\0.gguf"),
        "control" => named("\u{1b}[2J.gguf"),
        "newline" => named("m\n.gguf"),
        "long-name" => named(&format!("{}.gguf", "n".repeat(300))),
        "folder" => listing(json!([entry("m.gguf"), entry("m.gguf/n.gguf")])),
        "twice" => listing(json!([entry("m.gguf"), entry("m.gguf")])),
        "size-negative" => with("size", json!(-1)),
        "size-float" => with("size", json!(1.5)),
        "size-2-64" => with("size", json!(1e30)),
        "size-2-63" => with("size", json!(1u64 << 63)),
        "size-less" => with("size", json!(BODY.len() - 1)),
        "size-more" => with("size", json!(BODY.len() + 1)),
        "size-text" => with("size", json!("20")),
        "hash-short" => with("sha256", json!("00")),
        "hash-other" => with("sha256", json!("0".repeat(64))),
        "hash-path" => with("sha256", json!("../".repeat(22))),
        "no-hash" => with("lfs", json!(null)),
        "commit-path" => json!({"sha": "../../x", "siblings": [entry("m.gguf")]}).to_string().into_bytes(),
        "many" => listing(Value::Array((0..20_000).map(|i| entry(&format!("{i}.txt"))).collect())),
        _ => named("m.gguf"),
    }
}

fn answer(mut stream: TcpStream) {
    let Ok(reader) = stream.try_clone() else { return };
    let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
    let path = lines.next().and_then(|l| l.split(' ').nth(1).map(str::to_owned)).unwrap_or_default();
    lines.take_while(|l| !l.is_empty()).for_each(drop);
    let lists = path.starts_with("/api/");
    let path = path.trim_start_matches("/api/models");
    let manner = path.split('/').nth(2).unwrap_or_default().to_owned();
    let _ = match manner.strip_prefix(if lists { "list-" } else { "file-" }) {
        Some(how) => misbehave(&mut stream, how),
        None if lists => whole(&mut stream, &listing_of(&manner)),
        None => whole(&mut stream, BODY),
    };
}

fn whole(stream: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(body)
}

/// Nothing more comes, and the connection stays open until the other side closes it.
fn silence(stream: &mut TcpStream) -> std::io::Result<()> {
    while stream.read(&mut [0; 64])? > 0 {}
    Ok(())
}

fn for_ever(stream: &mut TcpStream, piece: &[u8]) -> std::io::Result<()> {
    loop {
        stream.write_all(piece)?;
    }
}

fn misbehave(stream: &mut TcpStream, how: &str) -> std::io::Result<()> {
    let redirect = |stream: &mut TcpStream, to: &str, rest: &str| {
        write!(stream, "HTTP/1.1 302 Found\r\nLocation: {to}\r\n{rest}\r\n")
    };
    if let Some(status) = how.strip_prefix("status-") {
        return write!(stream, "HTTP/1.1 {status} Because\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    match how {
        "cut" => write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{{"),
        "cut-head" => write!(stream, "HTTP/1.1 200 OK\r\nConte"),
        "closed" => Ok(()),
        "silent" => silence(stream),
        "silent-head" => {
            write!(stream, "HTTP/1.1 200 OK\r\n")?;
            silence(stream)
        }
        "silent-body" => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{{")?;
            silence(stream)
        }
        "rubbish" => stream.write_all(&[0xff; 4096]),
        "old" => write!(stream, "HTTP/0.9 what\r\n\r\n"),
        "lengths" => write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 99\r\n\r\nabc"),
        "length-2-64" => write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nabc"),
        "chunk" => write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc"),
        "chunk-rubbish" => write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"),
        "endless" => {
            write!(stream, "HTTP/1.1 200 OK\r\n\r\n")?;
            for_ever(stream, &[b' '; 1 << 16])
        }
        "endless-head" => {
            write!(stream, "HTTP/1.1 200 OK\r\n")?;
            for_ever(stream, &b"X-More: of the same\r\n".repeat(1000))
        }
        "endless-line" => {
            write!(stream, "HTTP/1.1 200 OK\r\nX-Long: ")?;
            for_ever(stream, &[b'x'; 1 << 16])
        }
        "range" => {
            write!(stream, "HTTP/1.1 206 Partial\r\nContent-Range: bytes 7-9/10\r\nContent-Length: 3\r\n\r\nabc")
        }
        "range-rubbish" => {
            write!(stream, "HTTP/1.1 206 Partial\r\nContent-Range: bytes x-\r\nContent-Length: 3\r\n\r\nabc")
        }
        "circle" => redirect(stream, "/h/file-circle/x", "Content-Length: 0\r\nConnection: close\r\n"),
        "to-file" => redirect(stream, "file:///etc/passwd", "Content-Length: 0\r\n"),
        "to-nothing" => redirect(stream, "", "Content-Length: 0\r\n"),
        "to-user" => redirect(stream, "http://user:word@127.0.0.1/x", "Content-Length: 0\r\n"),
        "to-relative" => redirect(stream, "elsewhere", "Content-Length: 0\r\n"),
        "to-closed" => redirect(stream, "http://127.0.0.1:1/x", "Content-Length: 0\r\n"),
        "to-control" => redirect(stream, "http://h/\u{1b}[2J", "Content-Length: 0\r\n"),
        "endless-redirect" => {
            redirect(stream, "http://127.0.0.1:1/x", "")?;
            for_ever(stream, &[b' '; 1 << 16])
        }
        other => write!(stream, "HTTP/1.1 500 {other}\r\nContent-Length: 0\r\n\r\n"),
    }
}

/// A pull into the child's folder. A second without data is enough on this machine; four attempts are made.
fn pull(manner: &str, options: &[&str]) -> Attempt {
    let repository = format!("h/{manner}");
    let args = [&["model", "pull", &repository, "--out", "."], options].concat();
    harness(AREA, manner, args).env("HF_ENDPOINT", endpoint()).env("HF_HUB_DOWNLOAD_TIMEOUT", "1").env("HF_TOKEN", "")
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = vec![pull("sound", &[]).creates("m.gguf")];
    all.extend(listings());
    all.extend(answers());
    all.extend(folders());
    all.extend(options());
    all
}

fn listings() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (manner, says) in [
        ("html", "no listing of files"),
        ("empty", "no listing of files"),
        ("no-list", "no listing of files"),
        ("deep", "no listing of files"),
        ("parent", "'../m.gguf' is no plain path"),
        ("absolute", "no plain path"),
        ("inner-parent", "no plain path"),
        ("dot", "no plain path"),
        ("no-name", "no plain path"),
        ("backslash", "no plain path"),
        ("nul", "no plain path"),
        ("control", "'\\u{1b}[2J.gguf' is no plain path"),
        ("newline", "no plain path"),
        ("twice", "stands there twice"),
        ("folder", "'m.gguf' is a file and a folder"),
        ("size-negative", "no listing of files"),
        ("size-float", "no listing of files"),
        ("size-2-64", "no listing of files"),
        ("size-2-63", "9223372036854775808 bytes"),
        ("size-text", "no listing of files"),
        ("size-less", "the size"),
        ("hash-short", "no size and hash"),
        ("hash-other", "the hash"),
        ("hash-path", "no size and hash"),
        ("no-hash", "no size and hash"),
        ("commit-path", "no SHA-1"),
        ("list-endless", "longer than"),
    ] {
        all.push(pull(manner, &[]).refused(says));
    }
    for (manner, says) in
        [("no-files", "has no file"), ("other-files", "has no file"), ("many", "has no file"), ("long-name", "name")]
    {
        all.push(pull(manner, &[]).usage(says));
    }
    // What came is kept: a later run goes on with it.
    all.push(pull("size-more", &[]).ends(1, "the connection ended at byte 20 of 21").creates(PART));
    all
}

fn answers() -> Vec<Attempt> {
    let mut all = Vec::new();
    for how in [
        "cut",
        "cut-head",
        "closed",
        "silent",
        "silent-head",
        "silent-body",
        "rubbish",
        "old",
        "lengths",
        "length-2-64",
        "chunk",
        "chunk-rubbish",
        "endless-head",
        "endless-line",
        "to-file",
        "to-nothing",
        "to-user",
        "to-relative",
        "to-closed",
        "to-control",
        "endless-redirect",
        "status-404",
        "status-401",
        "status-429",
        "status-500",
        "status-206",
        "status-100",
        "status-999",
    ] {
        all.push(pull(&format!("list-{how}"), &[]).ends_not_well());
        all.push(pull(&format!("file-{how}"), &[]).ends_not_well().may_leave(PART));
    }
    all.push(pull("file-circle", &[]).ends(1, "redirects"));
    all.push(pull("file-endless", &[]).refused("the size"));
    for how in ["range", "range-rubbish"] {
        all.push(pull(&format!("file-{how}"), &[]).ends(1, "did not go on"));
    }
    all
}

/// What stands in the folder already.
fn folders() -> Vec<Attempt> {
    type Prepare = fn(&Path);
    let mut all = Vec::new();
    let part: [(&str, Prepare, &str); 5] = [
        ("a link to a file", |f| symlink("victim", f.join(PART)).unwrap(), "a link"),
        ("a link to nothing", |f| symlink("nowhere", f.join(PART)).unwrap(), "a link"),
        ("a link to a device", |f| symlink("/dev/null", f.join(PART)).unwrap(), "a link"),
        ("a pipe", |f| fifo(&f.join(PART)), "a pipe"),
        ("a folder", |f| std::fs::create_dir(f.join(PART)).unwrap(), "a folder"),
    ];
    let named = |name: String, options: &[&str]| {
        let args = [&["model", "pull", "h/sound", "--out", "."], options].concat();
        harness(AREA, name, args)
            .env("HF_ENDPOINT", endpoint())
            .env("HF_HUB_DOWNLOAD_TIMEOUT", "1")
            .file("victim", "precious")
    };
    for (kind, prepare, says) in part {
        all.push(named(format!("the partial file is {kind}"), &[]).prepare(prepare).ends(1, says));
    }
    let whole: [(&str, Prepare, &str); 5] = [
        ("a link to a device", |f| symlink("/dev/null", f.join("m.gguf")).unwrap(), "a device"),
        ("a pipe", |f| fifo(&f.join("m.gguf")), "a pipe"),
        ("a folder", |f| std::fs::create_dir(f.join("m.gguf")).unwrap(), "a folder"),
        ("a link to a file", |f| symlink("victim", f.join("m.gguf")).unwrap(), "--force"),
        ("a link to nothing", |f| symlink("nowhere", f.join("m.gguf")).unwrap(), "--force"),
    ];
    for (kind, prepare, says) in whole {
        all.push(named(format!("the file is {kind}"), &[]).prepare(prepare).usage(says));
        let forced = named(format!("the file is {kind}, forced"), &["--force"]).prepare(prepare);
        // Links are replaced, never followed.
        all.push(if says == "--force" { forced.creates("m.gguf") } else { forced.usage(says) });
    }
    all.push(named("the file is another".into(), &[]).file("m.gguf", "old").usage("--force"));
    all.push(named("the file is there".into(), &[]).file("m.gguf", BODY));
    all.push(named("half of the file is there".into(), &[]).file(PART, &BODY[..7]).may_leave(PART).creates("m.gguf"));
    // This hub knows no ranges, so nothing of the part is used.
    all.push(named("another half is there".into(), &[]).file(PART, "rubbish").may_leave(PART).creates("m.gguf"));
    for (out, says) in [("victim", "victim"), ("/dev/null", "/dev/null"), ("/dev/null/x", "/dev/null"), ("", "--out")] {
        let args = ["model", "pull", "h/sound", "--out", out];
        let attempt =
            harness(AREA, format!("--out {out:?}"), args).env("HF_ENDPOINT", endpoint()).file("victim", "precious");
        all.push(attempt.usage(says));
    }
    all
}

fn options() -> Vec<Attempt> {
    let mut all = Vec::new();
    for repository in
        ["", "h", "/", "h/", "../m", "h/..", "h/m/x", "h/m?x", "h/m#x", "h/m%2e", "h/\u{1b}[2J", "h/m m", "https://h/m"]
    {
        let args = ["model", "pull", repository, "--out", "."];
        all.push(harness(AREA, format!("repository {repository:?}"), args).env("HF_ENDPOINT", endpoint()).usage(""));
    }
    for revision in ["", "..", "../x", "a//b", "a?b", "a b", "\u{1b}"] {
        all.push(
            pull("sound", &["--revision", revision]).named(format!("--revision {revision:?}")).usage("--revision"),
        );
    }
    for file in ["", "../m.gguf", "/etc/passwd", "n.gguf", "\u{1b}[2J"] {
        all.push(pull("sound", &["--file", file]).named(format!("--file {file:?}")).usage("has no file"));
    }
    for address in [
        "ftp://127.0.0.1",
        "file:///etc",
        "127.0.0.1",
        "http://",
        "http:///x",
        "http://user@127.0.0.1",
        "http://h\r\nX: y",
        "http://127.0.0.1?x=",
        "http://127.0.0.1#x",
        "http://h h",
    ] {
        let attempt = pull("sound", &[]).named(format!("HF_ENDPOINT={address:?}"));
        all.push(attempt.env("HF_ENDPOINT", address).usage("endpoint"));
    }
    for address in
        ["http://127.0.0.1:1", "http://127.0.0.1:99999", "http://[::1]:1", "http://[::1", "http://127.0.0.1:x"]
    {
        let attempt = pull("sound", &[]).named(format!("HF_ENDPOINT={address:?}"));
        all.push(attempt.env("HF_ENDPOINT", address).ends_not_well());
    }
    // The token must not leave this machine unencrypted, whatever the name begins with.
    for host in ["h.invalid", "127.0.0.1.h.invalid", "localhost.h.invalid", "127.0.0.1@h.invalid", "[::1].h.invalid"] {
        let attempt = pull("sound", &[]).named(format!("a token for {host}"));
        all.push(attempt.env("HF_ENDPOINT", format!("http://{host}")).env("HF_TOKEN", "secret").usage("endpoint"));
    }
    for token in ["a\nb", "\u{1b}", "灯"] {
        let attempt = pull("sound", &[]).named(format!("HF_TOKEN={token:?}"));
        all.push(attempt.env("HF_TOKEN", token).ends_any().may_leave("m.gguf"));
    }
    for seconds in ["0", "-1", "x", "3601", "1.5", "99999999999999999999"] {
        let attempt = pull("sound", &[]).named(format!("HF_HUB_DOWNLOAD_TIMEOUT={seconds}"));
        all.push(attempt.env("HF_HUB_DOWNLOAD_TIMEOUT", seconds).usage("HF_HUB_DOWNLOAD_TIMEOUT"));
    }
    all
}
