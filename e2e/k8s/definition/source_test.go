package definition

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	imageutils "k8s.io/kubernetes/test/utils/image"
)

// source parses a file of the Kubernetes version that go.mod pins.
func source(t *testing.T, path string) *ast.File {
	t.Helper()
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	list.Env = append(os.Environ(), "GOWORK=off")
	out, err := list.Output()
	if err != nil {
		t.Fatalf("find the source of Kubernetes: %v", err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(out)), path), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// structKeys lists the fields of a struct in source, and of those written out inside it, as Outer.Inner.
func structKeys(s *ast.StructType, prefix string) []string {
	var keys []string
	for _, field := range s.Fields.List {
		kind := field.Type
		if list, ok := kind.(*ast.ArrayType); ok {
			kind = list.Elt
		}
		for _, name := range field.Names {
			keys = append(keys, prefix+name.Name)
			if inner, ok := kind.(*ast.StructType); ok {
				keys = append(keys, structKeys(inner, prefix+name.Name+".")...)
			}
		}
	}
	return keys
}

// ownKeys lists the fields of our type as structKeys does those of the source.
func ownKeys(s reflect.Type, prefix string) []string {
	var keys []string
	for _, field := range reflect.VisibleFields(s) {
		kind := field.Type
		if kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		keys = append(keys, prefix+field.Name)
		if kind.Kind() == reflect.Struct && kind.PkgPath() == s.PkgPath() {
			keys = append(keys, ownKeys(kind, prefix+field.Name+".")...)
		}
	}
	return keys
}

func TestKeysAreThoseOfTheSource(t *testing.T) {
	var theirs []string
	ast.Inspect(source(t, "test/e2e/storage/external/external.go"), func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name == "driverDefinition" {
			theirs = structKeys(spec.Type.(*ast.StructType), "")
		}
		return true
	})
	ours := ownKeys(reflect.TypeFor[Definition](), "")
	slices.Sort(theirs)
	slices.Sort(ours)
	if len(theirs) < 20 || !slices.Equal(ours, theirs) {
		t.Errorf("the suite knows\n%q, this package\n%q", theirs, ours)
	}
}

func TestCapabilitiesAreThoseOfTheSource(t *testing.T) {
	var theirs []string
	ast.Inspect(source(t, "test/e2e/storage/framework/testdriver.go"), func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Capability" {
				value, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				theirs = append(theirs, value)
			}
		}
		return true
	})
	var ours []string
	for _, c := range capabilities() {
		ours = append(ours, string(c))
	}
	slices.Sort(theirs)
	slices.Sort(ours)
	if len(theirs) < 20 || !slices.Equal(ours, theirs) {
		t.Errorf("the suite knows\n%q, this package\n%q", theirs, ours)
	}
}

func TestImagesAreThoseOfTheSuite(t *testing.T) {
	script, err := os.ReadFile("../images")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []imageutils.ImageID{imageutils.BusyBox, imageutils.Nginx, imageutils.GlibcDnsTesting, imageutils.Agnhost} {
		name := imageutils.GetE2EImage(id)
		_, tagged, _ := strings.Cut(name, "/e2e-test-images/")
		if !strings.Contains(string(script), "registry=registry.k8s.io/e2e-test-images") || !strings.Contains(string(script), "$registry/"+tagged) {
			t.Errorf("the suite needs %s, which the script does not load", name)
		}
	}
}
