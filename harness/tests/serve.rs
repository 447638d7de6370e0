//! `harness serve` as a process, over a socket, by a client that reads the bytes itself.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_harness"))
            .args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"])
            .args(options)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended: {said}");
            if let Some(at) = line.find("http://") {
                break line[at + 7..].trim().to_owned();
            }
            said.push_str(&line);
        };
        // Whoever writes to a closed pipe would be told.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Self { child, address }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}",
            self.address
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
        (status, reply.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([format!("-{name}"), id]).status().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn chat(rest: &str) -> String {
    format!(r#"{{"model":"NAME","messages":[{{"role":"user","content":"turn on lumo"}}],"temperature":0{rest}}}"#)
}

#[test]
fn it_answers_as_generate_does_streams_reloads_and_stops() {
    let mut served = Served::start(&["--deterministic"]);
    assert_eq!(served.send("GET", "/health", "", ""), (200, r#"{"status":"ok"}"#.into()));
    let (status, models) = served.send("GET", "/v1/models", "", "");
    assert_eq!(status, 200);
    let models: serde_json::Value = serde_json::from_str(&models).unwrap();
    let name = models["data"][0]["id"].as_str().unwrap();
    let ask = |rest: &str| served.send("POST", "/v1/chat/completions", "", &chat(rest).replace("NAME", name));
    let (status, body) = ask(r#","max_tokens":12,"logprobs":true"#);
    assert_eq!(status, 200, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let generated = Command::new(env!("CARGO_BIN_EXE_harness"))
        .args([
            "generate",
            "--chat",
            "--prompt",
            "turn on lumo",
            "--max-tokens",
            "12",
            "--threads",
            "1",
            "--format",
            "json",
        ])
        .output()
        .unwrap();
    let generated: serde_json::Value = serde_json::from_slice(&generated.stdout).unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], generated["text"]);
    let logprobs = |list: &serde_json::Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|t| t["logprob"].as_f64().unwrap()).collect()
    };
    assert_eq!(logprobs(&body["choices"][0]["logprobs"]["content"]), logprobs(&generated["tokens"]));

    // SIGHUP does not end it.
    served.signal("HUP");
    served.signal("HUP");
    let (status, stream) = ask(r#","max_tokens":12,"stream":true"#);
    assert_eq!(status, 200);
    assert!(stream.contains("data: [DONE]"), "{stream}");
    served.signal("TERM");
    let ended = served.child.wait().unwrap();
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn other_machines_are_only_answered_with_keys() {
    let output = Command::new(env!("CARGO_BIN_EXE_harness")).args(["serve", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no keys are configured"));
    let made = Command::new(env!("CARGO_BIN_EXE_harness")).args(["serve", "--new-key", "anna"]).output().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, &made.stdout).unwrap();
    let said = String::from_utf8(made.stderr).unwrap();
    let key = said.trim().strip_prefix("key: ").unwrap();
    let served = Served::start(&["--keys", keys.to_str().unwrap()]);
    assert_eq!(served.send("GET", "/v1/models", "", "").0, 401);
    assert_eq!(served.send("GET", "/v1/models", &format!("Authorization: Bearer {key}\r\n"), "").0, 200);
}
