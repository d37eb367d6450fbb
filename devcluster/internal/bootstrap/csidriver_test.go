package bootstrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCSIDriverOfTheUser(t *testing.T) {
	const object = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: d.example.com}\nspec: {attachRequired: false}\n"
	tests := map[string]struct{ reason, text, driver, want string }{
		"Own":       {"a file with the object of the driver", "# mine\n---\n" + object, "d.example.com", ""},
		"OtherName": {"the object would not be that of the driver", object, "e.example.com", `named "d.example.com", but the driver answers that its name is "e.example.com"`},
		"Two":       {"which one?", object + "---\n" + object, "d.example.com", "must have one object"},
		"OtherKind": {"another object", strings.Replace(object, "CSIDriver", "CSINode", 1), "d.example.com", "must have one object of storage.k8s.io/v1 CSIDriver"},
		"Empty":     {"no object", "# nothing\n", "d.example.com", "must have one object"},
		"Malformed": {"no YAML", "{", "d.example.com", "decode document 1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "csidriver.yaml")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			o, err := Driver{Name: tc.driver, File: file}.object()
			switch {
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), file)):
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			case tc.want == "" && (err != nil || o.GetName() != tc.driver):
				t.Errorf("%s: got %v, %v", tc.reason, o, err)
			}
		})
	}
	if _, err := ReadCSIDriver(filepath.Join(t.TempDir(), "absent")); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("no file: %v", err)
	}
	if o, err := (Driver{Name: "d.example.com"}).object(); err != nil || o.GetKind() != "CSIDriver" || o.GetName() != "d.example.com" {
		t.Errorf("without a file: %v, %v", o, err)
	}
}
