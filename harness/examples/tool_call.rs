//! An agent's core: mount what the model shall know, constrain it to a set of tools, read one call.
//!
//! ```sh
//! harness cartridge create --text devices.txt --system --out devices.safetensors
//! cargo run -p harness --example tool_call -- devices.safetensors gates/grammars/home.toml "switch pixa on"
//! ```

use std::error::Error;
use std::path::Path;

use bitnet_rs::{ContextParams, Model, ModelParams};
use cartridge::{Cartridge, Rounding};
use files::stamps::StampStore;
use grammar::schema::SchemaOptions;
use grammar::tools::ToolRegistry;
use models::source::ModelSource;
use session::{GeneratorParams, Session, SessionParams, TemplateSandbox};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(cartridge), Some(tools), Some(request)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: tool_call CARTRIDGE TOOLS REQUEST [MODEL]".into());
    };
    let path = ModelSource::from_option(arguments.next().map(Into::into)).path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let mut session = Session::open(
        &model,
        SessionParams {
            context: ContextParams { n_ctx: 1024, ..Default::default() },
            template: None,
            // The embedded model's template is our own; a foreign one belongs into a process of its own.
            sandbox: TemplateSandbox::InProcess,
            known: StampStore::of_user(),
            verify_model: false,
        },
    )?;

    // What the model knows: keys and values from the file, locked to this very model.
    let talk = session.begin()?;
    session.mount(talk, &Cartridge::open(cartridge)?, Rounding::Exact)?;

    // What it may say: one call of one of the tools.
    let tools = ToolRegistry::load(Path::new(&tools), &SchemaOptions::default())?;
    let params = GeneratorParams { max_tokens: 200, grammar: Some(tools.language()), ..Default::default() };
    let said = session.say(talk, &request, params)?.finish(&mut |_| {})?;
    if !said.complete {
        // What was cut is not a call, whatever it looks like.
        return Err(format!("no call: {} after {:?}", said.ending, said.text).into());
    }
    let text = said.text;
    let call = tools.parse_call(&text)?;
    println!("{} {}", call.tool, serde_json::to_string_pretty(&call.arguments)?);
    Ok(())
}
