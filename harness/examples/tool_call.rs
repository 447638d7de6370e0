//! An agent's core: mount what the model shall know, constrain it to a set of tools, read one call.
//!
//! ```sh
//! harness cartridge create --text devices.txt --system --out devices.safetensors
//! cargo run -p harness --example tool_call -- devices.safetensors gates/grammars/home.toml "switch pixa on"
//! ```

use session::Mount as _;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use bitnet_rs::{Context, ContextParams, Model, ModelParams, SeqId};
use cartridge::{Cartridge, Level, Rounding};
use grammar::tools::{SchemaOptions, ToolRegistry};
use models::source::ModelSource;
use session::{ChatTemplate, Event, Generator, GeneratorParams, Message};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(cartridge), Some(tools), Some(request)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: tool_call CARTRIDGE TOOLS REQUEST [MODEL]".into());
    };
    let path = ModelSource::from_option(arguments.next().map(Into::into)).path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let mut context = Context::new(&model, &ContextParams { n_ctx: 1024, ..Default::default() })?;

    // What the model knows: keys and values from the file, locked to this very model.
    let lock = session::lock_of(&model, &mut |_, _| ControlFlow::Continue(()))?;
    let cartridge = Cartridge::open(cartridge)?;
    cartridge.validate(Level::Full)?;
    cartridge.mount(&mut context, SeqId::ZERO, &lock, Rounding::Exact)?;

    // What it may say: one call of one of the tools.
    let tools = ToolRegistry::load(Path::new(&tools), &SchemaOptions::default())?;
    let mut prompt = ChatTemplate::of_model(&model)?.tokens(&model, &[Message::new("user", request)], true)?;
    if prompt.first().copied() == model.bos() {
        prompt.remove(0); // the cartridge began the text
    }
    let params = GeneratorParams { max_tokens: 200, grammar: Some(tools.grammar().clone()), ..Default::default() };

    let mut text = String::new();
    for event in Generator::new(&mut context, SeqId::ZERO, &prompt, params)? {
        match event? {
            Event::Token { text: piece, .. } | Event::End { complete: true, text: piece, .. } => text.push_str(&piece),
            // What was cut is no call, whatever it looks like.
            Event::End { ending, .. } => return Err(format!("no call: {ending:?} after {text:?}").into()),
        }
    }
    let call = tools.parse_call(&text)?;
    println!("{} {}", call.tool, serde_json::to_string_pretty(&call.arguments)?);
    Ok(())
}
