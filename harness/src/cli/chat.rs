//! `harness chat`: a conversation, a line at a time.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::sync::atomic::Ordering;

use clap::Args;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::generate::{
    MAX_PROMPT, ModelOptions, Opened, prefilled, say_notes, session_error, take, timings, without_mark,
};
use super::{CliError, output};
use crate::exit::Exit;
use files::children::Children;
use session::{GenerateError, Message, Said, SessionError};

/// Options of `chat`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness chat --system $'Devices:\\n- lumo: light, kitchen'\n\nCtrl-C stops an answer, the second one ends the program; an empty line or end of input ends the conversation.\n/help lists the words for the conversation itself. Where the context is full the oldest turns are forgotten, which is\nsaid."
)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    options: ModelOptions,
}

const HELP: &str = "\
/help   these words
/reset  forget what was said; the system message and the cartridge stay
/stats  how much of the context is used, and how fast the last answer was
/exit   end the conversation, as an empty line does
A message that begins with / is written with two: //like this.";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Help,
    Reset,
    Stats,
    Exit,
    Unknown(&'a str),
    Message(&'a str),
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim();
        match line.strip_prefix('/') {
            None if line.is_empty() => Self::Exit,
            None => Self::Message(line),
            Some("help" | "?") => Self::Help,
            Some("reset" | "clear") => Self::Reset,
            Some("stats") => Self::Stats,
            Some("exit" | "quit" | "bye") => Self::Exit,
            Some(rest) if rest.starts_with('/') => Self::Message(rest),
            Some(_) => Self::Unknown(line),
        }
    }
}

/// Where lines come from.
enum Lines {
    /// A terminal, with editing and a history for as long as the conversation lasts.
    Edited(Box<DefaultEditor>),
    Plain(io::StdinLock<'static>),
}

impl Lines {
    fn open() -> Self {
        let at_a_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        match at_a_terminal.then(DefaultEditor::new) {
            Some(Ok(editor)) => Self::Edited(Box::new(editor)),
            _ => Self::Plain(io::stdin().lock()),
        }
    }

    /// The next line; `None` at the end.
    fn next(&mut self) -> Result<Option<String>, CliError> {
        let refused = |e: &dyn std::fmt::Display| CliError::Refused(format!("stdin: {e}"));
        match self {
            Self::Edited(editor) => match editor.readline("> ") {
                Ok(line) => {
                    // A line that is not kept can still be said.
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                Err(ReadlineError::Eof) => Ok(None),
                Err(ReadlineError::Interrupted) => Err(CliError::Interrupted),
                Err(e) => Err(refused(&e)),
            },
            Self::Plain(lines) => {
                let mut line = String::new();
                let n = lines.by_ref().take(MAX_PROMPT).read_line(&mut line).map_err(|e| refused(&e))?;
                Ok((n > 0).then_some(line))
            }
        }
    }
}

/// A conversation, and what happened in it.
struct Chat {
    opened: Opened,
    last: Option<Said>,
    forgotten: usize,
    refused: usize,
}

/// `harness chat`.
pub(crate) fn chat(args: ChatArgs, children: &Children) -> Result<Exit, CliError> {
    run(args.options, children)
}

/// A conversation, with a cartridge or without.
pub(super) fn run(options: ModelOptions, children: &Children) -> Result<Exit, CliError> {
    let mut opened = Opened::new(&options, children)?;
    let template_source = opened.session.template().map_err(session_error)?.source.clone();
    let name = opened.session.model().info().name().unwrap_or("unnamed").escape_debug().to_string();
    output::note(format_args!("model: {name} · template: {template_source}"));
    if let Some(next) = opened.mounted {
        output::note(format_args!("cartridge: {next} tokens mounted"));
    }
    let mut chat = Chat { opened, last: None, forgotten: 0, refused: 0 };
    let mut lines = Lines::open();
    if matches!(lines, Lines::Edited(_)) {
        output::note("/help lists the words for the conversation itself");
    }
    let mut first = true;
    loop {
        // Between answers there is nothing to stop: an interrupt ends the conversation.
        chat.opened.interrupted.store(true, Ordering::SeqCst);
        let Some(mut line) = lines.next()? else { break };
        if std::mem::take(&mut first) {
            let mut notes = Vec::new();
            line = without_mark(line, "stdin", &mut notes);
            say_notes(&notes);
        }
        chat.opened.interrupted.store(false, Ordering::SeqCst);
        match Line::of(&line) {
            Line::Exit => break,
            Line::Help => output::note(HELP),
            Line::Reset => chat.reset()?,
            Line::Stats => chat.stats()?,
            Line::Unknown(word) => {
                chat.refused += 1;
                let word = output::for_terminal(word);
                output::note(format_args!("{word}: no such word; /help lists them, and // begins a message with /"));
            }
            Line::Message(text) => chat.say(text)?,
        }
    }
    // Whoever sits at a terminal has read it; a script has the exit code.
    Ok(if chat.refused > 0 && matches!(lines, Lines::Plain(_)) { Exit::Usage } else { Exit::Success })
}

impl Chat {
    fn say(&mut self, text: &str) -> Result<(), CliError> {
        loop {
            match self.answer(text) {
                Ok(outcome) => return self.answered(outcome),
                Err(e) if is_full(&e) && self.forget_oldest()? => {}
                // The line has a text; a template that makes nothing of it is refused.
                Err(e @ SessionError::NothingRendered { .. }) => {
                    return self.answered(Err(CliError::Refused(e.to_string())));
                }
                Err(e) => return self.answered(Err(session_error(e))),
            }
        }
    }

    /// One attempt: refused, or answered as far as it went.
    fn answer(&mut self, text: &str) -> Result<Result<Said, CliError>, SessionError> {
        let (params, talk) = (self.opened.params.clone(), self.opened.talk);
        prefilled(|done| self.opened.session.say_with_progress(talk, text, params, done))
            .map(|answer| take(answer, true))
    }

    /// Says how an answer came out; what ends the conversation is an error.
    fn answered(&mut self, outcome: Result<Said, CliError>) -> Result<(), CliError> {
        match outcome {
            Ok(said) => {
                output::stream("\n")?;
                output::note(timings(self.opened.load, &said));
                self.last = Some(said);
            }
            // Refused, or stopped before its first token: the conversation goes on as if it had not been said.
            Err(e @ CliError::Usage(_)) => {
                self.refused += 1;
                output::note(format_args!("error: {}", output::for_terminal(&e.to_string())));
            }
            Err(e @ CliError::Interrupted) => output::note(e),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Drops the oldest message of the user with what followed it; says so. `false` where nothing is left to drop.
    fn forget_oldest(&mut self) -> Result<bool, CliError> {
        let (session, talk) = (&mut self.opened.session, self.opened.talk);
        let messages = session.messages(talk).map_err(session_error)?.to_vec();
        let is_users = |m: &Message| m.role == "user";
        let Some(oldest) = messages.iter().position(is_users) else { return Ok(false) };
        let next = messages[oldest + 1..].iter().position(is_users).map_or(messages.len(), |n| oldest + 1 + n);
        session.reset(talk).map_err(session_error)?;
        for message in messages[..oldest].iter().chain(&messages[next..]) {
            session.hear(talk, message.clone()).map_err(session_error)?;
        }
        self.forgotten += 1;
        output::note("note: the context is full: the oldest turn was forgotten");
        Ok(true)
    }

    fn reset(&mut self) -> Result<(), CliError> {
        let (session, talk) = (&mut self.opened.session, self.opened.talk);
        let messages = session.messages(talk).map_err(session_error)?.to_vec();
        session.reset(talk).map_err(session_error)?;
        for message in messages.iter().take_while(|m| m.role == "system") {
            session.hear(talk, message.clone()).map_err(session_error)?;
        }
        output::note("forgotten");
        Ok(())
    }

    fn stats(&self) -> Result<(), CliError> {
        let (session, talk) = (&self.opened.session, self.opened.talk);
        let held = session.tokens_held(talk).map_err(session_error)?;
        let trained = session.model().info().hyperparameters().n_ctx_train;
        let turns = session.messages(talk).map_err(session_error)?.iter().filter(|m| m.role == "user").count();
        output::note(format_args!(
            "{turns} turns, {} forgotten; {held} of {} tokens of the context used",
            self.forgotten,
            session.params().n_ctx.min(trained)
        ));
        if let Some(said) = &self.last {
            output::note(timings(self.opened.load, said));
        }
        Ok(())
    }
}

/// Would it fit if less had been said before?
fn is_full(e: &SessionError) -> bool {
    use bitnet_rs::Error as E;
    matches!(
        e,
        SessionError::Generate(
            GenerateError::Engine(E::ContextFull { .. } | E::PositionPastTraining { .. })
                | GenerateError::TooLong { .. }
        )
    )
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn words_for_the_conversation_are_told_from_messages() {
        for (line, expected) in [
            ("turn on lumo\n", Line::Message("turn on lumo")),
            ("  \r\n", Line::Exit),
            ("/help", Line::Help),
            ("/reset \n", Line::Reset),
            ("/stats", Line::Stats),
            ("/exit", Line::Exit),
            ("/frobnicate now", Line::Unknown("/frobnicate now")),
            ("/", Line::Unknown("/")),
            ("//usr/bin is a folder", Line::Message("/usr/bin is a folder")),
        ] {
            assert_eq!(Line::of(line), expected, "{line:?}");
        }
    }
}
