package main

import (
	"bytes"
	"go/format"
	"go/parser"
	"go/scanner"
	"go/token"
	"strconv"
	"strings"
)

// renamer gives files their new names.
type renamer struct {
	names       names
	text        *strings.Replacer
	identifiers *strings.Replacer
}

func newRenamer(n names) *renamer {
	return &renamer{names: n, text: n.text(), identifiers: n.identifiers()}
}

// file renames in the file of that name, and the file itself.
func (r *renamer) file(name string, data []byte) (string, []byte, error) {
	renamed := r.text.Replace(name)
	if !strings.HasSuffix(name, ".go") {
		return renamed, []byte(r.text.Replace(string(data))), nil
	}
	data, err := r.source(data)
	return renamed, data, err
}

// source renames in Go source: identifiers; and strings, imports among them, and comments as text.
func (r *renamer) source(src []byte) ([]byte, error) {
	unnamed, err := r.unnamedImports(src)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	written := 0
	err = tokens(src, func(offset int, tok token.Token, literal string) {
		renamed := literal
		switch tok {
		case token.IDENT:
			renamed = r.identifiers.Replace(literal)
		case token.STRING, token.COMMENT:
			renamed = r.text.Replace(literal)
		default: // has no name in it
		}
		if unnamed[offset] {
			renamed = r.names.Package + " " + renamed
		}
		if renamed != literal {
			out.Write(src[written:offset])
			out.WriteString(renamed)
			written = offset + len(literal)
		}
	})
	if err != nil {
		return nil, err
	}
	out.Write(src[written:])
	return format.Source(out.Bytes())
}

// unnamedImports returns the offsets of imports of the root package that must be given a name, because the package is called
// otherwise than the end of its path.
func (r *renamer) unnamedImports(src []byte) (map[int]bool, error) {
	if r.names.Package == r.names.element() {
		return nil, nil
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	found := map[int]bool{}
	for _, spec := range file.Imports {
		if spec.Path.Value == strconv.Quote(driverPath) && spec.Name == nil {
			found[fset.Position(spec.Path.Pos()).Offset] = true
		}
	}
	return found, nil
}

// collides reports whether the source both imports the root package and uses its new name for something else.
func (r *renamer) collides(src []byte) bool {
	imports, used := false, false
	err := tokens(src, func(_ int, tok token.Token, literal string) {
		imports = imports || tok == token.STRING && literal == strconv.Quote(driverPath)
		used = used || tok == token.IDENT && literal == r.names.Package
	})
	return err == nil && imports && used
}

// tokens calls visit for each token of Go source that has a text of its own.
func tokens(src []byte, visit func(offset int, tok token.Token, literal string)) error {
	var errs scanner.ErrorList
	file := token.NewFileSet().AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, errs.Add, scanner.ScanComments)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return errs.Err()
		}
		visit(file.Offset(pos), tok, literal)
	}
}
