//! No circle between the modules of a crate: what a file takes from others, followed through re-exports to the file
//! that defines it, never leads back to it. A `mod` line and a `pub use` are a table of contents and count for nothing;
//! tests count for nothing either.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

type Name = Vec<String>;

/// What one crate is made of, by path from the crate's root.
#[derive(Default)]
struct Crate {
    /// Module to the file that holds it.
    modules: BTreeMap<Name, PathBuf>,
    /// Items that a module defines.
    items: BTreeMap<Name, BTreeSet<String>>,
    /// What a module gives on under a name; an empty name is everything.
    exports: BTreeMap<Name, Vec<(String, Name)>>,
    /// Names that a module has by private imports.
    imports: BTreeMap<Name, Vec<(String, Name)>>,
    /// Paths that a module's code names.
    uses: BTreeMap<Name, BTreeSet<Name>>,
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("cfg") && matches!(&a.meta, syn::Meta::List(l) if l.tokens.to_string().contains("test"))
    })
}

/// The paths of a `use`, with the name that each is known by.
fn flatten(tree: &syn::UseTree, before: &[String], found: &mut Vec<(String, Name)>) {
    let with = |name: String| [before, &[name]].concat();
    match tree {
        syn::UseTree::Path(p) => flatten(&p.tree, &with(p.ident.to_string()), found),
        syn::UseTree::Name(n) if n.ident == "self" => {
            found.push((before.last().cloned().unwrap_or_default(), before.to_vec()));
        }
        syn::UseTree::Name(n) => found.push((n.ident.to_string(), with(n.ident.to_string()))),
        syn::UseTree::Rename(r) => found.push((r.rename.to_string(), with(r.ident.to_string()))),
        syn::UseTree::Glob(_) => found.push((String::new(), before.to_vec())),
        syn::UseTree::Group(g) => g.items.iter().for_each(|tree| flatten(tree, before, found)),
    }
}

struct Reader<'c> {
    of: &'c mut Crate,
    module: Name,
    file: PathBuf,
    /// Where the children of the module lie.
    folder: PathBuf,
}

impl Reader<'_> {
    fn items(&mut self, items: &[syn::Item]) {
        self.of.modules.insert(self.module.clone(), self.file.clone());
        items.iter().for_each(|item| self.visit_item(item));
    }

    fn define(&mut self, name: &syn::Ident) {
        self.of.items.entry(self.module.clone()).or_default().insert(name.to_string());
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item as I;
        let attributes = match item {
            I::Const(i) => &i.attrs,
            I::Enum(i) => &i.attrs,
            I::Fn(i) => &i.attrs,
            I::Impl(i) => &i.attrs,
            I::Mod(i) => &i.attrs,
            I::Static(i) => &i.attrs,
            I::Struct(i) => &i.attrs,
            I::Trait(i) => &i.attrs,
            I::Type(i) => &i.attrs,
            I::Use(i) => &i.attrs,
            _ => &Vec::new(),
        };
        if is_test(attributes) {
            return;
        }
        match item {
            I::Const(i) => self.define(&i.ident),
            I::Enum(i) => self.define(&i.ident),
            I::Fn(i) => self.define(&i.sig.ident),
            I::Static(i) => self.define(&i.ident),
            I::Struct(i) => self.define(&i.ident),
            I::Trait(i) => self.define(&i.ident),
            I::Type(i) => self.define(&i.ident),
            I::Union(i) => self.define(&i.ident),
            I::Macro(syn::ItemMacro { ident: Some(ident), .. }) => self.define(ident),
            I::Use(i) => {
                let mut found = Vec::new();
                flatten(&i.tree, &[], &mut found);
                let public = !matches!(i.vis, syn::Visibility::Inherited);
                let into = if public { &mut self.of.exports } else { &mut self.of.imports };
                into.entry(self.module.clone()).or_default().extend(found);
                return;
            }
            I::Mod(i) => {
                let name = i.ident.to_string();
                let module = [self.module.as_slice(), std::slice::from_ref(&name)].concat();
                if let Some((_, items)) = &i.content {
                    let (file, folder) = (self.file.clone(), self.folder.join(&name));
                    Reader { of: self.of, module, file, folder }.items(items);
                } else {
                    let beside = self.folder.join(format!("{name}.rs"));
                    let file = if beside.exists() { beside } else { self.folder.join(&name).join("mod.rs") };
                    read(self.of, module, &file, &self.folder.join(name));
                }
                return;
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.of.uses.entry(self.module.clone()).or_default().insert(names);
        visit::visit_path(self, path);
    }
}

fn read(of: &mut Crate, module: Name, file: &Path, folder: &Path) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    Reader { of, module, file: file.to_owned(), folder: folder.to_owned() }.items(&parsed.items);
}

impl Crate {
    fn of(root: &Path) -> Self {
        let mut found = Self::default();
        read(&mut found, Vec::new(), root, root.parent().unwrap());
        found
    }

    /// The file of this crate that defines what `path`, as `module` writes it, names.
    fn file_of(&self, module: &[String], path: &[String], depth: usize) -> Option<&PathBuf> {
        if depth == 0 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.below(&[], rest, depth),
            "self" => self.below(module, rest, depth),
            "super" => self.file_of_super(module, rest, depth),
            name => {
                let known = self.imports.get(module).into_iter().flatten().find(|(n, _)| n == name);
                match known {
                    Some((_, target)) if target != path => {
                        self.file_of(module, &[target.as_slice(), rest].concat(), depth - 1)
                    }
                    Some(_) => None,
                    None => self.below(module, path, depth),
                }
            }
        }
    }

    fn file_of_super(&self, module: &[String], rest: &[String], depth: usize) -> Option<&PathBuf> {
        let (_, parent) = module.split_last()?;
        if rest.first().is_some_and(|n| n == "super") {
            return self.file_of_super(parent, &rest[1..], depth);
        }
        self.below(parent, rest, depth)
    }

    /// `path` from `module` on down.
    fn below(&self, module: &[String], path: &[String], depth: usize) -> Option<&PathBuf> {
        if depth == 0 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let child = [module, std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.below(&child, rest, depth);
        }
        if self.items.get(module).is_some_and(|items| items.contains(first)) {
            return self.modules.get(module);
        }
        let exports = self.exports.get(module).into_iter().flatten();
        let imports = self.imports.get(module).into_iter().flatten();
        exports.chain(imports).filter(|(name, _)| name == first || name.is_empty()).find_map(|(name, target)| {
            let all = if name.is_empty() { path } else { rest };
            self.file_of(module, &[target.as_slice(), all].concat(), depth - 1)
        })
    }

    /// File to the files that it takes something from.
    fn edges(&self) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        let mut found: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
        for (module, file) in &self.modules {
            let imported = self.imports.get(module).into_iter().flatten().map(|(_, target)| target);
            let named = self.uses.get(module).into_iter().flatten();
            let to = imported.chain(named).filter_map(|path| self.file_of(module, path, 16)).filter(|to| *to != file);
            found.entry(file.clone()).or_default().extend(to.cloned());
        }
        found
    }
}

/// Files from which a way leads back to them, with the files on it.
fn circles(edges: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<Vec<PathBuf>> {
    let reach = |from: &PathBuf| {
        let mut seen = BTreeSet::new();
        let mut todo: Vec<&PathBuf> = edges.get(from).into_iter().flatten().collect();
        while let Some(next) = todo.pop() {
            if seen.insert(next.clone()) {
                todo.extend(edges.get(next).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = edges.keys().map(|file| (file, reach(file))).collect();
    let mut found = BTreeSet::new();
    for (file, to) in &reached {
        if to.contains(*file) {
            let members = to.iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(*file)));
            found.insert(members.cloned().collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

#[test]
fn no_circle_between_the_modules_of_a_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = vec![root.join("bitnet-sys/src"), root.join("bitnet-rs/src"), root.join("harness/src")];
    sources.extend(std::fs::read_dir(root.join("crates")).unwrap().map(|e| e.unwrap().path().join("src")));
    let (mut files, mut complaints) = (0, String::new());
    for source in sources {
        let read = Crate::of(&source.join("lib.rs"));
        let edges = read.edges();
        files += edges.len();
        for circle in circles(&edges) {
            for file in &circle {
                let to =
                    edges[file].iter().filter(|to| circle.contains(to)).map(|to| to.strip_prefix(&source).unwrap());
                let to: Vec<_> = to.map(|to| to.display().to_string()).collect();
                complaints += &format!("{} takes from {}\n", file.display(), to.join(", "));
            }
            complaints += "\n";
        }
    }
    assert!(files > 150, "only {files} files were read");
    assert!(complaints.is_empty(), "circles between modules:\n{complaints}");
}

/// Two files that take from each other, directly, through a re-export and through a module's name.
#[test]
fn a_circle_that_is_planted_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let found = || {
        let edges = Crate::of(&folder.path().join("lib.rs")).edges();
        circles(&edges).concat().iter().map(|f| f.file_stem().unwrap().to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    write("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use b::*;");
    write("c.rs", "use crate::A; fn f(_: A, _: super::B) {}");
    for (a, b, circle) in [
        ("pub struct A;", "pub struct B; fn f() -> super::A { panic!() }", vec![]),
        ("use super::b::B; pub struct A(B);", "pub struct B; fn f() -> super::A { panic!() }", vec!["a", "b"]),
        ("use crate::B; pub struct A(B);", "use crate::a; pub struct B; fn f(_: a::A) {}", vec!["a", "b"]),
        ("pub struct A; #[cfg(test)] mod tests { use crate::B; }", "pub struct B; use super::A;", vec![]),
    ] {
        write("a.rs", a);
        write("b.rs", b);
        assert_eq!(found(), circle, "{a} {b}");
    }
}
