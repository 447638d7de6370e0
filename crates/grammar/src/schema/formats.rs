//! Formats: which are asserted, and their languages.
//!
//! A format is asserted in every draft and applies to strings only. Each is a regular language, written here once and
//! used by the grammar and by the validator; `regex` is decided by the validator alone. Other names are annotations:
//! they are named in a remark and constrain nothing.

use llguidance::derivre::RegexAst;

/// The language of a format, or how else it is decided.
pub(crate) enum Format {
    Language(RegexAst),
    /// A regular expression that [`super::pattern`] reads.
    Regex,
}

const LEAP: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
const UNRESERVED: &str = "a-zA-Z0-9\\-._~";
const SUB_DELIMS: &str = "!$&'()*+,;=";
const PERCENT: &str = "%[0-9a-fA-F]{2}";
const UCS: &str = "\\x{A0}-\\x{D7FF}\\x{F900}-\\x{FDCF}\\x{FDF0}-\\x{FFEF}\\x{10000}-\\x{1FFFD}\\x{20000}-\\x{2FFFD}\
    \\x{30000}-\\x{3FFFD}\\x{40000}-\\x{4FFFD}\\x{50000}-\\x{5FFFD}\\x{60000}-\\x{6FFFD}\\x{70000}-\\x{7FFFD}\
    \\x{80000}-\\x{8FFFD}\\x{90000}-\\x{9FFFD}\\x{A0000}-\\x{AFFFD}\\x{B0000}-\\x{BFFFD}\\x{C0000}-\\x{CFFFD}\
    \\x{D0000}-\\x{DFFFD}\\x{E1000}-\\x{EFFFD}";
const PRIVATE: &str = "\\x{E000}-\\x{F8FF}\\x{F0000}-\\x{FFFFD}\\x{100000}-\\x{10FFFD}";

fn date() -> String {
    format!(
        "(?:[0-9]{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
         |02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP}-02-29)"
    )
}

const CLOCK: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const LEAP_SECOND: &str = "23:59:60(?:\\.[0-9]{1,9})?(?:[zZ]|[+-]00:00)";

/// RFC 3339; the leap second where it can only be, at the end of a day of UTC.
fn time() -> String {
    format!("(?:{CLOCK}|{LEAP_SECOND})")
}

/// RFC 3339; leap seconds at the end of June or December only.
fn date_time() -> String {
    format!("(?:{}[tT]{CLOCK}|[0-9]{{4}}-(?:06-30|12-31)[tT]{LEAP_SECOND})", date())
}

fn duration() -> &'static str {
    "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)\
     (?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?\
     |T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"
}

const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

fn ipv4() -> String {
    format!("(?:{OCTET}\\.){{3}}{OCTET}")
}

fn ipv6() -> String {
    let h = "[0-9a-fA-F]{1,4}";
    let tail = format!("(?:{h}:{h}|{})", ipv4());
    format!(
        "(?:(?:{h}:){{6}}{tail}|::(?:{h}:){{5}}{tail}|(?:{h})?::(?:{h}:){{4}}{tail}|(?:(?:{h}:){{0,1}}{h})?::(?:{h}:){{3}}{tail}\
         |(?:(?:{h}:){{0,2}}{h})?::(?:{h}:){{2}}{tail}|(?:(?:{h}:){{0,3}}{h})?::{h}:{tail}|(?:(?:{h}:){{0,4}}{h})?::{tail}\
         |(?:(?:{h}:){{0,5}}{h})?::{h}|(?:(?:{h}:){{0,6}}{h})?::)"
    )
}

const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";

fn hostname() -> RegexAst {
    RegexAst::And(vec![
        RegexAst::Regex(format!("{LABEL}(?:\\.{LABEL})*")),
        RegexAst::Regex("(?s:.{1,253})".to_owned()),
        // Punycode would have to be decoded.
        RegexAst::Not(Box::new(RegexAst::Regex("(?s:(?:.*\\.)?..--.*)".to_owned()))),
    ])
}

fn email(local: &str) -> RegexAst {
    RegexAst::And(vec![
        RegexAst::Regex(format!("{local}(?:\\.{local})*@{LABEL}(?:\\.{LABEL})*")),
        RegexAst::Regex("(?s:[^@]{1,64}@[^@]{1,253})".to_owned()),
    ])
}

/// RFC 3986 and 3987.
fn uri(international: bool, reference: bool) -> String {
    let (more, query) = if international { (UCS, PRIVATE) } else { ("", "") };
    let pchar = format!("(?:[{UNRESERVED}{SUB_DELIMS}:@{more}]|{PERCENT})");
    let no_colon = format!("(?:[{UNRESERVED}{SUB_DELIMS}@{more}]|{PERCENT})");
    let reg_name = format!("(?:[{UNRESERVED}{SUB_DELIMS}{more}]|{PERCENT})*");
    let user = format!("(?:[{UNRESERVED}{SUB_DELIMS}:{more}]|{PERCENT})*");
    let authority = format!("(?:{user}@)?(?:\\[{}\\]|{reg_name})(?::[0-9]{{0,5}})?", ipv6());
    let path = format!("(?:/{pchar}*)*");
    let absolute = format!("/(?:{pchar}+(?:/{pchar}*)*)?");
    let tail = format!("(?:\\?(?:{pchar}|[/?{query}])*)?(?:\\#(?:{pchar}|[/?])*)?");
    let full = format!("[a-zA-Z][a-zA-Z0-9+\\-.]*:(?://{authority}{path}|{absolute}|{pchar}+(?:/{pchar}*)*|){tail}");
    if reference {
        format!("(?:{full}|(?://{authority}{path}|{absolute}|{no_colon}+(?:/{pchar}*)*|){tail})")
    } else {
        full
    }
}

const POINTER: &str = "(?s:(?:/(?:[^/~]|~[01])*)*)";

fn uri_template() -> String {
    let literal = format!(
        "(?:[\\x21\\x23\\x24\\x26\\x28-\\x3B\\x3D\\x3F-\\x5B\\x5D\\x5F\\x61-\\x7A\\x7E{UCS}{PRIVATE}]|{PERCENT})"
    );
    let name = format!("(?:[a-zA-Z0-9_]|{PERCENT})(?:\\.?(?:[a-zA-Z0-9_]|{PERCENT}))*(?::[1-9][0-9]{{0,3}}|\\*)?");
    format!("(?:{literal}|\\{{[+\\#./;?&=,!@|]?{name}(?:,{name})*\\}})*")
}

/// `None`: the format is an annotation.
pub(crate) fn lookup(name: &str) -> Option<Format> {
    let atext = "[a-zA-Z0-9!#$%&'*+\\-/=?^_`{|}~]+";
    let regex = |text: String| Some(Format::Language(RegexAst::Regex(text)));
    match name {
        "date" => regex(date()),
        "time" => regex(time()),
        "date-time" => regex(date_time()),
        "duration" => regex(duration().to_owned()),
        "email" => Some(Format::Language(email(atext))),
        "idn-email" => Some(Format::Language(email(&format!("(?:[a-zA-Z0-9!#$%&'*+\\-/=?^_`{{|}}~{UCS}])+")))),
        "hostname" | "idn-hostname" => Some(Format::Language(hostname())),
        "ipv4" | "ip-address" => regex(ipv4()),
        "ipv6" => regex(ipv6()),
        "uuid" => regex("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned()),
        "uri" => regex(uri(false, false)),
        "uri-reference" => regex(uri(false, true)),
        "iri" => regex(uri(true, false)),
        "iri-reference" => regex(uri(true, true)),
        "uri-template" => regex(uri_template()),
        "json-pointer" => regex(POINTER.to_owned()),
        "relative-json-pointer" => regex(format!("(?:0|[1-9][0-9]*)(?:\\#|{POINTER})")),
        "regex" => Some(Format::Regex),
        _ => None,
    }
}
