//! Imports inside the library: no cycle between files, no type name twice.
//!
//! A file imports another if it names an item that the other defines. A
//! re-export (`pub use`) is followed to the definition and is no import
//! itself, so a `mod.rs` that only re-exports is never part of a cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::documents::module_tree;
use crate::{code, shipped};

/// A module path, as in `["lease", "wait"]`.
type Module = Vec<String>;

/// What is known of the crate's modules and items.
#[derive(Default)]
struct Index {
    modules: BTreeSet<Module>,
    /// The items that each module defines.
    items: BTreeMap<Module, BTreeSet<String>>,
    /// The items that each module re-exports, and from where.
    reexports: BTreeMap<(Module, String), Module>,
}

/// A source file: its module, and the paths that it names.
struct Source {
    module: Module,
    imports: Vec<Module>,
}

fn module_of(place: &str) -> Module {
    let path = place.trim_end_matches(".rs");
    let parts = path.split('/').filter(|part| *part != "mod");
    parts
        .filter(|part| *part != "lib")
        .map(str::to_owned)
        .collect()
}

/// Returns the name that a line at the top level of a file defines.
fn defined(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub(") {
        Some(scope) => scope.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let line = line.strip_prefix("async ").unwrap_or(line);
    let kinds = [
        "struct ", "enum ", "trait ", "type ", "fn ", "const ", "static ",
    ];
    let kinds = kinds.iter().chain(&["macro_rules! "]);
    let name = kinds.filter_map(|kind| line.strip_prefix(kind)).next()?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

/// Expands `a::{b, c::{d, e}}` into `a::b`, `a::c::d` and `a::c::e`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap();
        return vec![path.trim().to_owned()];
    };
    let rest = rest.trim_end();
    let rest = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut part, mut parts) = (0, String::new(), Vec::new());
    for c in rest.chars().chain([',']) {
        match c {
            ',' if depth == 0 => parts.push(std::mem::take(&mut part)),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                part.push(c);
            }
        }
    }
    let parts = parts.iter().map(|part| part.trim());
    parts
        .filter(|part| !part.is_empty())
        .flat_map(expand)
        .map(|path| format!("{}{path}", prefix.trim()))
        .collect()
}

/// Returns the `use` trees of a file, and whether each is a re-export.
fn uses(code: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        let statement = statement.trim_start_matches(|c: char| c != 'u' && c != 'p' && c != '#');
        let statement = statement.split(']').next_back().unwrap().trim();
        let start = statement.rfind("\nuse ").map_or(0, |at| at + 1);
        let statement = &statement[start..];
        if let Some((visibility, tree)) = statement.split_once("use ")
            && (visibility.is_empty() || visibility.starts_with("pub"))
            && !visibility.contains('\n')
        {
            found.push((!visibility.is_empty(), tree.to_owned()));
        }
    }
    found
}

impl Index {
    /// Resolves `crate::`, `super::`, `self::` and child modules; `None` for
    /// paths of other crates.
    fn absolute(&self, module: &Module, path: &str) -> Option<Module> {
        let mut base = module.clone();
        let mut parts = path.split("::").peekable();
        match *parts.peek()? {
            "crate" => base.clear(),
            "super" | "self" => {}
            first => {
                base.push(first.to_owned());
                if !self.modules.contains(&base) {
                    return None;
                }
                base.pop();
            }
        }
        for part in parts {
            match part {
                "crate" | "self" => {}
                "super" => drop(base.pop()),
                part => base.push(part.to_owned()),
            }
        }
        Some(base)
    }

    /// Returns the module that defines what `path` names.
    fn definition(&self, path: &Module) -> Option<Module> {
        for at in (0..=path.len()).rev() {
            let module = path[..at].to_vec();
            if !self.modules.contains(&module) {
                continue;
            }
            let Some(item) = path.get(at) else {
                return Some(module);
            };
            if self
                .items
                .get(&module)
                .is_some_and(|items| items.contains(item))
            {
                return Some(module);
            }
            return self
                .reexports
                .get(&(module, item.clone()))
                .and_then(|target| self.definition(target));
        }
        None
    }
}

fn read_sources() -> (Index, Vec<Source>) {
    let mut index = Index::default();
    let files: Vec<_> = shipped()
        .into_iter()
        .map(|(place, path)| (module_of(&place), code(&path)))
        .collect();
    for (module, code) in &files {
        index.modules.insert(module.clone());
        let items = code.lines().filter_map(defined).map(str::to_owned);
        index.items.insert(module.clone(), items.collect());
    }
    let mut sources = Vec::new();
    for (module, code) in &files {
        let mut imports = Vec::new();
        for (is_reexport, tree) in uses(code) {
            for path in expand(&tree) {
                let Some(path) = index.absolute(module, &path) else {
                    continue;
                };
                match (is_reexport, path.last()) {
                    (true, Some(name)) => {
                        let name = (module.clone(), name.clone());
                        index.reexports.insert(name, path);
                    }
                    _ => imports.push(path),
                }
            }
        }
        // Paths outside of `use`.
        for inline in code.split("crate::").skip(1) {
            let end = inline.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            let path = &inline[..end.unwrap_or(inline.len())];
            // A path that ends here is part of a `use` with braces.
            if !path.ends_with("::") {
                imports.extend(index.absolute(module, &format!("crate::{path}")));
            }
        }
        sources.push(Source {
            module: module.clone(),
            imports,
        });
    }
    (index, sources)
}

/// Returns the modules that lie on a cycle of `edges`.
fn cyclic(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<&Module> {
    let reaches_itself = |start: &&Module| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<_> = edges[*start].iter().collect();
        while let Some(module) = next.pop() {
            if module == *start {
                return true;
            }
            if seen.insert(module) {
                next.extend(edges.get(module).into_iter().flatten());
            }
        }
        false
    };
    edges.keys().filter(reaches_itself).collect()
}

#[test]
fn files_have_no_import_cycle() {
    let (index, sources) = read_sources();
    let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for source in &sources {
        let definitions = source
            .imports
            .iter()
            .filter_map(|path| index.definition(path));
        let others = definitions.filter(|module| *module != source.module);
        edges.insert(source.module.clone(), others.collect());
    }
    let count: usize = edges.values().map(BTreeSet::len).sum();
    assert!(count > 200, "only {count} imports were found");
    let cyclic = cyclic(&edges);
    let shown: Vec<_> = cyclic
        .iter()
        .map(|module| {
            let targets = edges[*module].iter().filter(|to| cyclic.contains(to));
            let targets: Vec<_> = targets.map(|to| to.join("::")).collect();
            format!("{} -> {}", module.join("::"), targets.join(", "))
        })
        .collect();
    assert!(cyclic.is_empty(), "{}", shown.join("\n"));
}

#[test]
fn lease_modules_import_those_above_them() {
    let tree = module_tree();
    let lease = tree.split("\n  lease/ ").nth(1).unwrap();
    // Files and folders directly below `lease/`.
    let lines = lease.lines().skip(1);
    let lines = lines.take_while(|line| line.starts_with("    "));
    let names = lines.filter_map(|line| line.strip_prefix("    ")?.split(' ').next());
    let order: Vec<_> = names
        .map(|name| name.trim_end_matches(".rs").trim_end_matches('/'))
        .filter(|name| !name.is_empty())
        .collect();
    let (index, sources) = read_sources();
    let rank = |module: &Module| match module.as_slice() {
        [layer, part, ..] if layer == "lease" => order.iter().position(|name| name == part),
        _ => None,
    };
    let mut checked = 0;
    for source in &sources {
        for import in source.imports.iter().filter_map(|at| index.definition(at)) {
            let Some(own) = rank(&source.module) else {
                continue;
            };
            let Some(other) = rank(&import) else {
                continue;
            };
            let from = source.module.join("::");
            let to = import.join("::");
            assert!(other <= own, "{from} imports {to}, which is listed below");
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} imports were found");
}

#[test]
fn cycle_check_finds_a_cycle() {
    let module = |name: &str| vec![name.to_owned()];
    let edge = |from, to: &[&str]| (module(from), to.iter().map(|to| module(to)).collect());
    let edges = BTreeMap::from([edge("a", &["b"]), edge("b", &["c"]), edge("c", &["b"])]);
    assert_eq!(cyclic(&edges), [&module("b"), &module("c")]);
    assert_eq!(
        expand("a::{b, c::{d, e as f}}"),
        ["a::b", "a::c::d", "a::c::e"]
    );
}

#[test]
fn type_names_are_unique() {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (place, path) in shipped() {
        for line in code(&path).lines() {
            let word = line.trim_start();
            let is_type = ["struct ", "enum ", "trait "]
                .iter()
                .any(|kind| word.starts_with(kind) || word.contains(&format!(") {kind}")))
                || [
                    "pub struct ",
                    "pub enum ",
                    "pub trait ",
                    "type ",
                    "pub type ",
                ]
                .iter()
                .any(|kind| line.starts_with(kind))
                || (line.starts_with("pub(") && line.contains(") type "));
            if is_type && let Some(name) = defined(word) {
                let places = names.entry(name.to_owned()).or_default();
                places.push(place.clone());
            }
        }
    }
    let twice: Vec<_> = names
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .collect();
    assert!(twice.is_empty(), "{twice:#?}");
}
