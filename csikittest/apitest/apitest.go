// Package apitest keeps the exported API of a module in a file, so that each change of it is seen. It is for tests.
package apitest

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// Compare compares the exported API of packages of a module, given by their directories, with api.txt in the directory of the test: a change of it is a change
// for every importer. Write the file with `REWRITE=1 go test -run TestAPI .`, and say in CHANGELOG.md what importers must change. It also wants a comment for
// each exported name, and no type of an internal package, which importers could not name.
func Compare(t *testing.T, module string, dirs ...string) {
	t.Helper()
	api, problems := list(t, module, dirs)
	for _, p := range problems {
		t.Error(p)
	}
	commandtest.Golden(t, "api.txt", api)
}

// list returns the API of packages, and what is wrong with it.
func list(t *testing.T, module string, dirs []string) (api string, problems []string) {
	t.Helper()
	for _, dir := range dirs {
		a := &apiOf{t: t, fset: token.NewFileSet(), module: module, dir: dir, imports: map[string]string{}}
		a.write()
		slices.Sort(a.lines)
		api += "package " + filepath.Base(module) + strings.TrimPrefix("/"+dir, "/.") + "\n\n" + strings.Join(a.lines, "\n") + "\n\n"
		problems = append(problems, a.problems...)
	}
	return api, problems
}

// apiOf lists the API of one package.
type apiOf struct {
	t           *testing.T
	fset        *token.FileSet
	module, dir string
	// imports has the path of each imported package by its name.
	imports         map[string]string
	lines, problems []string
}

func (a *apiOf) write() {
	a.t.Helper()
	paths, err := filepath.Glob(filepath.Join(a.dir, "*.go"))
	if err != nil {
		a.t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		// Of files for other systems there is another one for this.
		if matches, err := build.Default.MatchFile(a.dir, filepath.Base(path)); err != nil || !matches || strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(a.fset, path, nil, parser.ParseComments)
		if err != nil {
			a.t.Fatal(err)
		}
		a.note(file.Imports)
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(a.fset, files, a.module+"/"+a.dir)
	if err != nil {
		a.t.Fatal(err)
	}
	a.values(pkg.Consts)
	a.values(pkg.Vars)
	a.funcs(pkg.Funcs)
	for _, typ := range pkg.Types {
		a.documented(typ.Name, typ.Doc)
		a.values(typ.Consts)
		a.values(typ.Vars)
		a.funcs(typ.Funcs)
		a.funcs(typ.Methods)
		for _, spec := range typ.Decl.Specs {
			a.typeSpec(spec.(*ast.TypeSpec))
		}
	}
}

// note notes what a file imports.
func (a *apiOf) note(imports []*ast.ImportSpec) {
	for _, spec := range imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			a.t.Fatal(err)
		}
		name := filepath.Base(path)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		a.imports[name] = path
	}
}

func (a *apiOf) values(values []*doc.Value) {
	for _, v := range values {
		for _, spec := range v.Decl.Specs {
			value := spec.(*ast.ValueSpec)
			for _, name := range value.Names {
				if name.IsExported() {
					a.documented(name.Name, v.Doc+value.Doc.Text()+value.Comment.Text())
					a.lines = append(a.lines, v.Decl.Tok.String()+" "+name.Name)
				}
			}
		}
	}
}

func (a *apiOf) funcs(funcs []*doc.Func) {
	for _, f := range funcs {
		a.documented(f.Name, f.Doc)
		decl := *f.Decl
		decl.Body, decl.Doc = nil, nil
		a.lines = append(a.lines, a.text(&decl))
	}
}

// typeSpec lists a type, and each exported field and method of it by a line of its own.
func (a *apiOf) typeSpec(spec *ast.TypeSpec) {
	var fields *ast.FieldList
	var kind string
	switch t := spec.Type.(type) {
	case *ast.StructType:
		fields, kind = t.Fields, "struct"
	case *ast.InterfaceType:
		fields, kind = t.Methods, "interface"
	default:
		kind = a.text(spec.Type)
	}
	equals := " "
	if spec.Assign.IsValid() {
		equals = " = "
	}
	a.lines = append(a.lines, "type "+spec.Name.Name+equals+kind)
	if fields == nil {
		return
	}
	for _, field := range fields.List {
		for _, name := range field.Names {
			if name.IsExported() {
				a.documented(spec.Name.Name+"."+name.Name, field.Doc.Text()+field.Comment.Text())
				a.lines = append(a.lines, "type "+spec.Name.Name+" "+kind+", "+name.Name+" "+a.text(field.Type))
			}
		}
	}
}

func (a *apiOf) documented(name, comment string) {
	if strings.TrimSpace(comment) == "" {
		a.problems = append(a.problems, fmt.Sprintf("%s: %s has no comment", a.dir, name))
	}
}

// text is Go code in one line.
func (a *apiOf) text(node ast.Node) string {
	ast.Inspect(node, func(n ast.Node) bool {
		if selected, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := selected.X.(*ast.Ident); ok && strings.Contains(a.imports[pkg.Name], "/internal/") {
				a.problems = append(a.problems, fmt.Sprintf("%s: %s.%s is of an internal package", a.dir, pkg.Name, selected.Sel.Name))
			}
		}
		return true
	})
	var b strings.Builder
	if err := printer.Fprint(&b, a.fset, node); err != nil {
		a.t.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
