"""One pass over a program's syntax tree that collects what the screen asks about. Nothing is judged here."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from azr.executor.scopes import Import, Read, Scope, Survey

_NOT_NODES = frozenset(
    {"ctx", "op", "ops", "id", "attr", "kind", "lineno", "names", "arg", "type_comment", "is_async", "simple",
     "conversion", "name", "rest", "kwd_attrs"}
)  # fmt: skip
_CHILDREN: dict[type, tuple[str, ...]] = {
    kind: tuple(name for name in kind._fields if name not in _NOT_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and kind is not ast.Constant
}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def survey(tree: ast.Module) -> Survey:
    """Every read of a name with its scope, every other attribute and every import in ``tree``."""
    return _Surveyor().run(tree)


class _Surveyor:
    """Walks with a stack of its own: a deep tree is no reason to run out of Python's."""

    def __init__(self) -> None:
        self.found = Survey(module=Scope("module"), reads=[], attributes=[], imports=[])
        self.stack: list[tuple[ast.AST, Scope]] = []
        self.deletions: list[tuple[str, Scope]] = []
        self.imported: list[tuple[str, str, bool, Scope]] = []

    def run(self, tree: ast.Module) -> Survey:
        module = self.found.module
        _order(tree.body, module)
        self.push(tree.body, module)
        while self.stack:
            node, scope = self.stack.pop()
            visit = _VISITORS.get(type(node))
            if visit is None:
                self.descend(node, scope)
            else:
                visit(self, node, scope)
        for name, scope in self.deletions:
            self.found.binder(name, scope).unbound.add(name)
        for name, path, is_module, scope in self.imported:
            # Under a global or nonlocal declaration an import binds in another scope.
            binder = self.found.binder(name, scope)
            binder.imports.setdefault(name, path)
            if is_module:
                binder.modules.add(name)
        return self.found

    def push(self, nodes: Iterable[ast.AST | None], scope: Scope) -> None:
        self.stack += [(node, scope) for node in nodes if node is not None]

    def descend(self, node: ast.AST, scope: Scope) -> None:
        for name in _CHILDREN.get(type(node), ()):
            child = getattr(node, name)
            if type(child) is list:
                self.push(child, scope)
            elif child is not None:
                self.stack.append((child, scope))

    def visit_name(self, node: ast.Name, scope: Scope) -> None:
        if type(node.ctx) is ast.Load:
            self.found.reads.append(Read(node.id, scope, (node.lineno, node.col_offset), []))
            return
        scope.bound.add(node.id)
        if type(node.ctx) is ast.Del:
            self.deletions.append((node.id, scope))

    def visit_attribute(self, node: ast.Attribute, scope: Scope) -> None:
        self.chain(node, scope)

    def chain(self, node: ast.expr, scope: Scope) -> Read | None:
        """Record ``a.b.c``; returns the read of its root when that is a name."""
        changes = isinstance(node, ast.Attribute) and type(node.ctx) is not ast.Load
        attributes = []
        while isinstance(node, ast.Attribute):
            attributes.append((node.attr, node.end_lineno or node.lineno))
            node = node.value
        if not isinstance(node, ast.Name) or type(node.ctx) is not ast.Load:
            self.found.attributes += attributes
            self.stack.append((node, scope))
            return None
        read = Read(node.id, scope, (node.lineno, node.col_offset), attributes[::-1], changes)
        self.found.reads.append(read)
        return read

    def visit_call(self, node: ast.Call, scope: Scope) -> None:
        self.push(node.args, scope)
        self.push((keyword.value for keyword in node.keywords), scope)
        read = self.chain(node.func, scope)
        if read is not None:
            names = node.args[1:2] if read.name == "getattr" else node.args
            literal = all(isinstance(name, ast.Constant) and type(name.value) is str for name in names)
            starred = any(isinstance(argument, ast.Starred) for argument in node.args)
            read.literals = bool(names) and literal and not starred and not node.keywords
            if read.literals and read.name == "getattr":
                self.found.attributes += [
                    (str(name.value), node.lineno) for name in names if isinstance(name, ast.Constant)
                ]

    def visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        scope.bound.add(node.name)
        self.push([*node.decorator_list, node.returns, *getattr(node, "type_params", ())], scope)
        self.push(node.body, self.parameters(node.args, scope))

    def visit_lambda(self, node: ast.Lambda, scope: Scope) -> None:
        self.stack.append((node.body, self.parameters(node.args, scope)))

    def parameters(self, arguments: ast.arguments, scope: Scope) -> Scope:
        """The scope of a function with these parameters; defaults and annotations belong to the one around it."""
        inner = Scope("function", scope)
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        named = [argument for argument in every if argument is not None]
        inner.bound.update(argument.arg for argument in named)
        self.push((argument.annotation for argument in named), scope)
        self.push([*arguments.defaults, *arguments.kw_defaults], scope)
        return inner

    def visit_class(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.bound.add(node.name)
        self.push([*node.decorator_list, *node.bases, *getattr(node, "type_params", ())], scope)
        self.push((keyword.value for keyword in node.keywords), scope)
        inner = Scope("class", scope)
        _order(node.body, inner)
        self.push(node.body, inner)

    def visit_comprehension(self, node: ast.ListComp | ast.DictComp, scope: Scope) -> None:
        inner = Scope("comprehension", scope)
        first, *rest = node.generators
        self.stack.append((first.iter, scope))
        self.push([first.target, *first.ifs, *rest], inner)
        self.push((getattr(node, name) for name in _CHILDREN[type(node)] if name != "generators"), inner)

    def visit_walrus(self, node: ast.NamedExpr, scope: Scope) -> None:
        target: Scope | None = scope
        while target is not None and target.kind == "comprehension":
            target = target.parent
        assert target is not None
        self.push([node.target], target)
        self.push([node.value], scope)

    def visit_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            scope.bound.add(name)
            self.imported.append((name, alias.name if alias.asname else name, True, scope))
            self.found.imports.append(Import(node.lineno, alias.name, relative=False))

    def visit_import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            path = f"{node.module}.{alias.name}" if node.module else alias.name
            if name != "*":
                scope.bound.add(name)
                self.imported.append((name, path, False, scope))
            self.found.imports.append(Import(node.lineno, path, relative=bool(node.level)))

    def visit_global(self, node: ast.Global, scope: Scope) -> None:
        scope.outer.update(dict.fromkeys(node.names, "global"))
        self.found.module.bound.update(node.names)

    def visit_nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.outer.update(dict.fromkeys(node.names, "nonlocal"))

    def visit_handler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        self.bind_capture(node.name, scope)
        if node.name is not None:
            self.deletions.append((node.name, scope))
        self.descend(node, scope)

    def visit_capture(self, node: ast.MatchAs | ast.MatchStar, scope: Scope) -> None:
        self.bind_capture(node.name, scope)
        self.descend(node, scope)

    def visit_mapping(self, node: ast.MatchMapping, scope: Scope) -> None:
        self.bind_capture(node.rest, scope)
        self.descend(node, scope)

    def visit_class_pattern(self, node: ast.MatchClass, scope: Scope) -> None:
        self.found.attributes += [(name, node.lineno) for name in node.kwd_attrs]
        self.descend(node, scope)

    def bind_capture(self, name: str | None, scope: Scope) -> None:
        if name is not None:
            scope.bound.add(name)


def _order(body: list[ast.stmt], scope: Scope) -> None:
    """Note from where on the unconditional statements of a module or class have bound their names."""
    for statement in body:
        end = (statement.end_lineno or statement.lineno, statement.end_col_offset or 0)
        names: list[str] = []
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
                if not statement.decorator_list:
                    # Nobody can have called it before its name was bound; a decorator can.
                    end = (statement.body[0].lineno, statement.body[0].col_offset)
            case ast.ClassDef(name=name):
                names = [name]
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names = [alias.asname or alias.name.split(".")[0] for alias in aliases]
            case ast.Assign(targets=targets):
                names = [name for target in targets for name in _targets(target)]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                names = [name]
        for name in names:
            scope.since.setdefault(name, end)


def _targets(target: ast.expr) -> list[str]:
    match target:
        case ast.Name(id=name):
            return [name]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [item.id for item in items if isinstance(item, ast.Name)]
    return []


_VISITORS: dict[type, Callable[..., None]] = {
    ast.Name: _Surveyor.visit_name,
    ast.Attribute: _Surveyor.visit_attribute,
    ast.Call: _Surveyor.visit_call,
    **dict.fromkeys(_FUNCTIONS, _Surveyor.visit_function),
    ast.Lambda: _Surveyor.visit_lambda,
    ast.ClassDef: _Surveyor.visit_class,
    **dict.fromkeys(_COMPREHENSIONS, _Surveyor.visit_comprehension),
    ast.NamedExpr: _Surveyor.visit_walrus,
    ast.Import: _Surveyor.visit_import,
    ast.ImportFrom: _Surveyor.visit_import_from,
    ast.Global: _Surveyor.visit_global,
    ast.Nonlocal: _Surveyor.visit_nonlocal,
    ast.ExceptHandler: _Surveyor.visit_handler,
    ast.MatchAs: _Surveyor.visit_capture,
    ast.MatchStar: _Surveyor.visit_capture,
    ast.MatchMapping: _Surveyor.visit_mapping,
    ast.MatchClass: _Surveyor.visit_class_pattern,
}
