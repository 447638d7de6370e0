//! Hostile containers.

use super::*;

fn refused(file: &[u8]) -> ContainerError {
    match Cartridge::from_bytes(file.to_vec()) {
        Err(CartridgeError::Container(e)) => e,
        Err(e) => panic!("not a container error: {e}"),
        Ok(_) => panic!("accepted"),
    }
}

fn with_length(length: u64) -> ContainerError {
    let mut file = small_native();
    file[..8].copy_from_slice(&length.to_le_bytes());
    refused(&file)
}

#[test]
fn header_lengths() {
    let len = small_native().len() as u64;
    for length in [0, 1, len - 7, len, HEADER_LIMIT + 1, 1 << 63, (1 << 63) - 8, u64::MAX, u64::MAX - 7] {
        let e = with_length(length);
        assert!(matches!(e, ContainerError::HeaderLength { found, .. } if found == length), "{length}: {e}");
    }
    // Long enough to be there, but not the header.
    assert!(matches!(with_length(7), ContainerError::Header(_)));
    assert!(matches!(with_length(2), ContainerError::Header(_)));
    assert!(matches!(refused(b""), ContainerError::TooShort { len: 0 }));
    assert!(matches!(refused(&[2, 0, 0, 0, 0, 0, 0]), ContainerError::TooShort { len: 7 }));
}

#[test]
fn other_kinds_of_file() {
    assert!(matches!(refused(b"PK\x03\x04 and the rest of an archive"), ContainerError::Pickle));
    assert!(matches!(refused(b"\x80\x02}q\x00(X\x0e\x00\x00\x00trainable_keys"), ContainerError::Pickle));
    assert!(matches!(refused(b"\x80\x05\x95\x10\x00\x00\x00\x00\x00\x00\x00"), ContainerError::Pickle));
    assert!(matches!(refused(b"GGUF\x03\x00\x00\x00"), ContainerError::OtherFormat("GGUF")));
    // A header of 0x0280 bytes starts like a pickle of protocol 2 and is none.
    let json = format!("{{{}}}", " ".repeat(0x280 - 2));
    let e = Cartridge::from_bytes(container(&json, b"")).unwrap_err();
    assert!(matches!(e, CartridgeError::NotACartridge(_)), "{e}");
}

fn header(json: &str, data: usize) -> ContainerError {
    refused(&container(json, &vec![0; data]))
}

#[test]
fn headers_that_are_no_headers() {
    for json in [
        "  {}",
        "[]",
        "{ ",
        "{}}",
        "{} {}",
        "nul",
        r#"{"a":1}"#,
        r#"{"a":["F16",[1],[0,2]]}"#,
        r#"{"a":{"dtype":"F16","shape":[1]}}"#,
        r#"{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2],"x":0}}"#,
        r#"{"a":{"dtype":"F16","shape":[1],"shape":[1],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2,2]}}"#,
        r#"{"a":{"dtype":"F16","shape":[1],"data_offsets":[2]}}"#,
        r#"{"a":{"dtype":"F16","shape":[1],"data_offsets":"02"}}"#,
        r#"{"a":{"dtype":"F16","shape":[1.0],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"F16","shape":[-1],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"F16","shape":[18446744073709551616],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":0,"shape":[1],"data_offsets":[0,2]}}"#,
        r#"{"__metadata__":{"a":1}}"#,
        r#"{"__metadata__":{"a":null}}"#,
        r#"{"__metadata__":{"a":{"b":"c"}}}"#,
        r#"{"__metadata__":[]}"#,
        r#"{"__metadata__":{},"__metadata__":{}}"#,
        "{\"a\":\"\u{0}\"}",
    ] {
        assert!(matches!(header(json, 2), ContainerError::Header(_)), "{json}");
    }
    assert!(matches!(refused(&[&4u64.to_le_bytes()[..], b"{\xff\xfe}"].concat()), ContainerError::Header(_)));
    for open in ["[", "{\"a\":"] {
        let deep = format!("{{\"a\":{}", open.repeat(200_000));
        assert!(matches!(header(&deep, 0), ContainerError::Header(_)));
        let deep = format!("{{\"a\":{{\"shape\":{}", open.repeat(200_000));
        assert!(matches!(header(&deep, 0), ContainerError::Header(_)));
    }
    let long = format!("{{\"{}\":1}}", "x".repeat(1 << 20));
    let ContainerError::Header(message) = header(&long, 0) else { panic!() };
    assert!(message.len() < 1000, "a message does not repeat the input");
}

fn tensor(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn tensors(list: &[String], data: usize) -> ContainerError {
    header(&format!("{{{}}}", list.join(",")), data)
}

#[test]
fn tensors_that_do_not_fit_the_data() {
    let one = |dtype, shape, begin, end, data| tensors(&[tensor("a", dtype, shape, begin, end)], data);
    assert!(matches!(one("F16", "[2]", 4, 0, 4), ContainerError::Offsets { begin: 4, end: 0, len: 4, .. }));
    assert!(matches!(one("F16", "[2]", 0, 5, 4), ContainerError::Offsets { .. }));
    assert!(matches!(one("F16", "[2]", u64::MAX - 1, u64::MAX, 4), ContainerError::Offsets { .. }));
    assert!(matches!(one("F16", "[2]", 0, 2, 2), ContainerError::Size { found: 2, expected: 4, .. }));
    assert!(matches!(one("F16", "[2]", 0, 6, 6), ContainerError::Size { found: 6, expected: 4, .. }));
    assert!(matches!(one("F32", "[]", 0, 2, 2), ContainerError::Size { expected: 4, .. }));
    for shape in
        ["[4294967296,4294967296]", "[9223372036854775808]", "[18446744073709551615,2]", "[65536,65536,65536,65536,2]"]
    {
        assert!(matches!(one("F16", shape, 0, 0, 0), ContainerError::SizeOverflow { .. }), "{shape}");
    }
    // The product is 0 only at the end of the multiplication, not before an overflow.
    assert!(matches!(one("U8", "[0,18446744073709551615]", 0, 4, 4), ContainerError::Size { .. }));
    assert!(matches!(one("U8", "[1,1,1,1,1,1,1,1,1]", 0, 1, 1), ContainerError::Dimensions { found: 9, .. }));
    for dtype in ["F64", "Q8_0", "f16", "", "F8_E4M3"] {
        assert!(matches!(one(dtype, "[1]", 0, 2, 2), ContainerError::Dtype { .. }), "{dtype}");
    }
}

#[test]
fn tensors_tile_the_data() {
    let u8s = |name, begin, end| tensor(name, "U8", &format!("[{}]", end - begin), begin, end);
    assert!(matches!(tensors(&[u8s("a", 0, 4), u8s("b", 3, 6)], 6), ContainerError::Overlap { begin: 3, end: 4, .. }));
    assert!(matches!(tensors(&[u8s("a", 0, 6), u8s("b", 0, 6)], 6), ContainerError::Overlap { .. }));
    assert!(matches!(tensors(&[u8s("a", 0, 2), u8s("b", 3, 6)], 6), ContainerError::Gap { begin: 2, end: 3 }));
    assert!(matches!(tensors(&[u8s("a", 1, 6)], 6), ContainerError::Gap { begin: 0, end: 1 }));
    assert!(matches!(tensors(&[u8s("a", 0, 5)], 6), ContainerError::Gap { begin: 5, end: 6 }));
    assert!(matches!(header("{}", 1), ContainerError::Gap { begin: 0, end: 1 }));
    let mut file = small_native();
    file.push(0);
    assert!(matches!(refused(&file), ContainerError::Gap { .. }));
    file.truncate(file.len() - 3);
    assert!(matches!(refused(&file), ContainerError::Offsets { .. }));
}

#[test]
fn names_occur_once() {
    let twice = [tensor("a", "U8", "[1]", 0, 1), tensor("a", "U8", "[1]", 1, 2)];
    assert!(matches!(tensors(&twice, 2), ContainerError::DuplicateTensor(n) if n == "a"));
    let escaped = [tensor("a", "U8", "[1]", 0, 1), tensor("\\u0061", "U8", "[1]", 1, 2)];
    assert!(matches!(tensors(&escaped, 2), ContainerError::DuplicateTensor(n) if n == "a"));
    let keys = r#"{"__metadata__":{"format":"x","n":"1","format":"bitnet-cartridge/1"}}"#;
    assert!(matches!(header(keys, 0), ContainerError::DuplicateKey(k) if k == "format"));
}

#[test]
fn what_we_accept_the_crate_accepts() {
    for file in [small_native(), small_head_major()] {
        assert!(safetensors::SafeTensors::deserialize(&file).is_ok());
    }
}
