package definition

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	imageutils "k8s.io/kubernetes/test/utils/image"
)

// e2eImage is the name of an image that Kubernetes makes for its tests.
var e2eImage = regexp.MustCompile(`registry\.k8s\.io/e2e-test-images/[^\s"]+`)

// sourceFile reads a file of the Kubernetes version that go.mod pins.
func sourceFile(t *testing.T, path string) []byte {
	t.Helper()
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	list.Env = append(os.Environ(), "GOWORK=off")
	out, err := list.Output()
	if err != nil {
		t.Fatalf("find the source of Kubernetes: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), path))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// source parses such a file.
func source(t *testing.T, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, sourceFile(t, path), parser.SkipObjectResolution)
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
	images := []string{imageutils.GetE2EImage(imageutils.Pause)}
	for _, id := range []imageutils.ImageID{imageutils.BusyBox, imageutils.Nginx, imageutils.GlibcDnsTesting, imageutils.Agnhost} {
		images = append(images, imageutils.GetE2EImage(id))
	}
	for _, manifest := range []string{"mock/csi-mock-proxy.yaml", "hostpath/hostpath/csi-hostpath-plugin.yaml"} {
		images = append(images, e2eImage.FindAllString(string(sourceFile(t, "test/e2e/testing-manifests/storage-csi/"+manifest)), -1)...)
	}
	if len(images) < 6 {
		t.Errorf("the mock driver's manifest names no image of its own: %q", images)
	}
	for _, name := range images {
		_, tagged, ofTests := strings.Cut(name, "/e2e-test-images/")
		want := name
		if ofTests {
			want = "$registry/" + tagged
		}
		if !strings.Contains(string(script), "registry=registry.k8s.io/e2e-test-images") || !strings.Contains(string(script), want) {
			t.Errorf("the suites need %s, which the script does not load", name)
		}
	}
}
