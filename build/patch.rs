//! Unified diffs, applied strictly: every context line must stand, byte for byte, on the line that the hunk names.
//! A fuzzy match would be a guess about code whose hash is pinned, so there is none to make.

use std::fmt;

/// One file of `vendor/patches/`: the reason, then hunks for one or more files.
#[derive(Debug)]
pub(crate) struct Patch {
    name: String,
    files: Vec<FilePatch>,
}

#[derive(Debug)]
struct FilePatch {
    path: String,
    hunks: Vec<Hunk>,
}

#[derive(Debug)]
struct Hunk {
    /// The `@@ … @@` part of its head, for messages.
    head: String,
    /// First line before the change, from 1.
    start: usize,
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Context(String),
    Remove(String),
    Add(String),
}

/// The ranges of a hunk's head: where it starts and how many lines it covers, before and after.
struct Ranges {
    old: (usize, usize),
    new: (usize, usize),
}

impl Patch {
    /// Reads a patch. `name` is what messages call it.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        // Not `lines()`, which would drop a carriage return that the file may have.
        let numbered = text.strip_suffix('\n').unwrap_or(text).split('\n').enumerate();
        let mut lines = Lines { name, rest: numbered.peekable(), last: 0 };
        let mut reason = false;
        while let Some(line) = lines.next_if(|line| !line.starts_with("--- ")) {
            reason |= !line.trim().is_empty();
        }
        if !reason {
            return Err(lines.error("it begins without saying what it is for"));
        }
        let mut files = Vec::new();
        while let Some(line) = lines.next() {
            let old = line.strip_prefix("--- a/").ok_or_else(|| lines.error("expected `--- a/PATH`"))?;
            let new = lines.next().and_then(|line| line.strip_prefix("+++ b/"));
            if new != Some(old) {
                return Err(lines.error(format_args!("expected `+++ b/{old}`")));
            }
            let mut hunks = Vec::new();
            let mut shift = 0;
            while let Some(head) = lines.next_if(|line| line.starts_with("@@")) {
                hunks.push(hunk(&mut lines, head, &mut shift)?);
            }
            if hunks.is_empty() {
                return Err(lines.error(format_args!("no hunk for {old}")));
            }
            files.push(FilePatch { path: old.to_owned(), hunks });
        }
        if files.is_empty() {
            return Err(lines.error("it changes no file"));
        }
        Ok(Self { name: name.to_owned(), files })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The files that it changes, relative to the source's root.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.path.as_str())
    }

    /// Applies what it has for `path` (perhaps nothing) to that file's content.
    pub(crate) fn apply(&self, path: &str, content: Vec<u8>) -> Result<Vec<u8>, String> {
        let mut content = content;
        for file in self.files.iter().filter(|file| file.path == path) {
            content = file.apply(&content).map_err(|(hunk, why)| {
                format!("patch {} does not fit {path}: hunk {hunk} ({}): {why}", self.name, file.hunks[hunk - 1].head)
            })?;
        }
        Ok(content)
    }
}

impl FilePatch {
    /// The error is the number of the hunk, from 1, and what is wrong.
    fn apply(&self, content: &[u8]) -> Result<Vec<u8>, (usize, String)> {
        let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
        let mut out = Vec::with_capacity(content.len());
        let mut at = 0;
        for (number, hunk) in (1..).zip(&self.hunks) {
            let untouched = lines.get(at..hunk.start - 1).ok_or_else(|| {
                (number, format!("the file has {} lines, or the hunk before reaches here", lines.len()))
            })?;
            out.extend(untouched.concat());
            at = hunk.start - 1;
            for line in &hunk.lines {
                match line {
                    Line::Context(expected) | Line::Remove(expected) => {
                        let found = lines.get(at).copied().unwrap_or_default();
                        if found.strip_suffix(b"\n") != Some(expected.as_bytes()) {
                            let found = String::from_utf8_lossy(found);
                            let found = found.trim_end_matches('\n');
                            return Err((number, format!("line {} is {found:?}, expected {expected:?}", at + 1)));
                        }
                        at += 1;
                        if matches!(line, Line::Context(_)) {
                            out.extend_from_slice(found);
                        }
                    }
                    Line::Add(added) => {
                        out.extend_from_slice(added.as_bytes());
                        out.push(b'\n');
                    }
                }
            }
        }
        out.extend(lines[at..].concat());
        Ok(out)
    }
}

/// Reads the lines behind a hunk's head; its own counts say how many belong to it.
fn hunk<'a>(
    lines: &mut Lines<'a, impl Iterator<Item = (usize, &'a str)>>,
    head: &str,
    shift: &mut isize,
) -> Result<Hunk, String> {
    let ranges = Ranges::parse(head).ok_or_else(|| lines.error("expected `@@ -LINE,COUNT +LINE,COUNT @@`"))?;
    if ranges.old.0.checked_add_signed(*shift) != Some(ranges.new.0) {
        return Err(lines.error("the new line number does not follow from the old one and the hunks before"));
    }
    let (mut old, mut new) = (0, 0);
    let mut body = Vec::new();
    while old < ranges.old.1 || new < ranges.new.1 {
        let line = lines.next().ok_or_else(|| lines.error("the hunk is shorter than its head says"))?;
        let (before, after, line) = match line.split_at_checked(1) {
            Some((" ", text)) => (1, 1, Line::Context(text.to_owned())),
            Some(("-", text)) => (1, 0, Line::Remove(text.to_owned())),
            Some(("+", text)) => (0, 1, Line::Add(text.to_owned())),
            _ => return Err(lines.error("a line of a hunk begins with a space, `-` or `+`")),
        };
        old += before;
        new += after;
        body.push(line);
    }
    if (old, new) != (ranges.old.1, ranges.new.1) {
        return Err(lines.error("the hunk's lines are not as many as its head says"));
    }
    if !body.iter().any(|line| !matches!(line, Line::Add(_))) {
        return Err(lines.error("a hunk without context could go anywhere"));
    }
    *shift += new.cast_signed() - old.cast_signed();
    Ok(Hunk { head: head.to_owned(), start: ranges.old.0, lines: body })
}

impl Ranges {
    /// `@@ -20619,6 +20619,10 @@`, perhaps with the function's name behind.
    fn parse(head: &str) -> Option<Self> {
        let (ranges, _) = head.strip_prefix("@@ -")?.split_once(" @@")?;
        let (old, new) = ranges.split_once(" +")?;
        let range = |text: &str| {
            let (line, count) = text.split_once(',').unwrap_or((text, "1"));
            let line = line.parse().ok().filter(|line| *line > 0)?;
            Some((line, count.parse().ok().filter(|count| *count <= 100_000)?))
        };
        Some(Self { old: range(old)?, new: range(new)? })
    }
}

/// The lines of a patch, with what a message needs.
struct Lines<'a, I: Iterator<Item = (usize, &'a str)>> {
    name: &'a str,
    rest: std::iter::Peekable<I>,
    /// Number of the line that was read last, from 1.
    last: usize,
}

impl<'a, I: Iterator<Item = (usize, &'a str)>> Lines<'a, I> {
    fn next(&mut self) -> Option<&'a str> {
        self.next_if(|_| true)
    }

    fn next_if(&mut self, wanted: impl Fn(&str) -> bool) -> Option<&'a str> {
        let (index, line) = self.rest.next_if(|(_, line)| wanted(line))?;
        self.last = index + 1;
        Some(line)
    }

    fn error(&self, what: impl fmt::Display) -> String {
        format!("patch {}, line {}: {what}", self.name, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n";

    fn patch(diff: &str) -> Result<Patch, String> {
        Patch::parse("0009-test.patch", &format!("Why\n\n{diff}"))
    }

    fn applied(diff: &str) -> Result<String, String> {
        let done = patch(&format!("--- a/f.c\n+++ b/f.c\n{diff}"))?.apply("f.c", FILE.into())?;
        Ok(String::from_utf8(done).unwrap())
    }

    #[test]
    fn hunks_replace_add_and_remove_lines() {
        let diff = "@@ -1,3 +1,4 @@ int f()\n one\n-two\n+2\n+2b\n three\n@@ -6,2 +7,1 @@\n six\n-seven\n";
        assert_eq!(applied(diff).unwrap(), "one\n2\n2b\nthree\nfour\nfive\nsix\n");
        // The last line may be all there is behind a hunk, and the first all before.
        assert_eq!(applied("@@ -2 +2 @@\n-two\n+2\n").unwrap(), FILE.replace("two", "2"));
        let dos = patch("--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-a\r\n+A\r\n").unwrap();
        assert_eq!(dos.apply("f.c", b"a\r\n".to_vec()).unwrap(), b"A\r\n");
        // What stands behind an unterminated last line stays unterminated.
        let open = patch("--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-a\n+A\n").unwrap();
        assert_eq!(open.apply("f.c", b"a\n\xffb".to_vec()).unwrap(), b"A\n\xffb");
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let both = patch("--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-a\n+A\n--- a/d/g.c\n+++ b/d/g.c\n@@ -1 +1 @@\n-a\n+B\n")
            .unwrap();
        assert_eq!(both.paths().collect::<Vec<_>>(), ["f.c", "d/g.c"]);
        assert_eq!(both.apply("d/g.c", b"a\n".to_vec()).unwrap(), b"B\n");
        assert_eq!(both.apply("g.c", b"a\n".to_vec()).unwrap(), b"a\n");
    }

    #[test]
    fn nothing_is_searched_for() {
        for (diff, why) in [
            ("@@ -1,2 +1,2 @@\n two\n-three\n+3\n", r#"hunk 1 (@@ -1,2 +1,2 @@): line 1 is "one", expected "two""#),
            ("@@ -2,2 +2,2 @@\n two\n-Three\n+3\n", r#"hunk 1 (@@ -2,2 +2,2 @@): line 3 is "three", expected "Three""#),
            ("@@ -2 +2 @@\n-two \n+2\n", r#"hunk 1 (@@ -2 +2 @@): line 2 is "two", expected "two ""#),
            (
                "@@ -1 +1 @@\n-one\n+1\n@@ -7,2 +7,1 @@\n seven\n-eight\n",
                r#"hunk 2 (@@ -7,2 +7,1 @@): line 8 is "", expected "eight""#,
            ),
            (
                "@@ -90 +90 @@\n-one\n+1\n",
                "hunk 1 (@@ -90 +90 @@): the file has 7 lines, or the hunk before reaches here",
            ),
            (
                "@@ -3 +3 @@\n-three\n+3\n@@ -2 +2 @@\n-two\n+2\n",
                "hunk 2 (@@ -2 +2 @@): the file has 7 lines, or the hunk before reaches here",
            ),
        ] {
            assert_eq!(applied(diff).unwrap_err(), format!("patch 0009-test.patch does not fit f.c: {why}"), "{diff}");
        }
    }

    #[test]
    fn a_file_that_ends_without_a_newline_is_not_matched_there() {
        let last = patch("--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-a\n+A\n").unwrap();
        assert!(last.apply("f.c", b"a".to_vec()).is_err());
    }

    #[test]
    fn what_is_no_patch_is_refused_with_its_line() {
        let head = "--- a/f.c\n+++ b/f.c\n";
        for (diff, why) in [
            ("", "line 2: it changes no file"),
            ("--- f.c\n+++ f.c\n", "line 3: expected `--- a/PATH`"),
            ("--- a/f.c\n+++ b/g.c\n", "line 4: expected `+++ b/f.c`"),
            ("--- a/f.c\n+++ /dev/null\n", "line 4: expected `+++ b/f.c`"),
            (head, "line 4: no hunk for f.c"),
            (&format!("{head}@@ -1 1 @@\n"), "line 5: expected `@@ -LINE,COUNT +LINE,COUNT @@`"),
            (&format!("{head}@@ -0,0 +1 @@\n+a\n"), "line 5: expected `@@ -LINE,COUNT +LINE,COUNT @@`"),
            (&format!("{head}@@ -1 +1 @@\n-a\n"), "line 6: the hunk is shorter than its head says"),
            (&format!("{head}@@ -1 +1 @@\n-a\n-b\n+A\n"), "line 8: the hunk's lines are not as many as its head says"),
            (&format!("{head}@@ -1 +1 @@\n-a\n+A\n+B\n"), "line 8: expected `--- a/PATH`"),
            (&format!("{head}@@ -1 +1 @@\n-a\n\n"), "line 7: a line of a hunk begins with a space, `-` or `+`"),
            (&format!("{head}@@ -1 +1 @@\n-a\n+A\n\\ No newline at end of file\n"), "line 8: expected `--- a/PATH`"),
            (&format!("{head}@@ -3,0 +3 @@\n+a\n"), "line 6: a hunk without context could go anywhere"),
            (
                &format!("{head}@@ -1 +1,2 @@\n-a\n+A\n+B\n@@ -9 +9 @@\n-a\n+A\n"),
                "line 9: the new line number does not follow from the old one and the hunks before",
            ),
        ] {
            assert_eq!(patch(diff).unwrap_err(), format!("patch 0009-test.patch, {why}"), "{diff}");
        }
        let silent = Patch::parse("0009-test.patch", &format!("\n{head}@@ -1 +1 @@\n-a\n+A\n")).unwrap_err();
        assert_eq!(silent, "patch 0009-test.patch, line 1: it begins without saying what it is for");
    }
}
