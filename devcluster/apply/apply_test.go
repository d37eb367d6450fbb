package apply_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

func TestDecode(t *testing.T) {
	tests := map[string]struct {
		reason string
		yaml   string
		want   []string
		err    string
	}{
		"Nothing":      {reason: "an empty stream has no objects"},
		"CommentsOnly": {reason: "a document of comments is no object", yaml: "# nothing\n---\n# again\n"},
		"One":          {reason: "one object needs no separator", yaml: "{kind: A, metadata: {name: x}}", want: []string{"A/x"}},
		"Order":        {reason: "the order of the file is the order of application", yaml: "{kind: B, metadata: {name: v}}\n---\n{kind: A, metadata: {name: x}}", want: []string{"B/v", "A/x"}},
		"Gap":          {reason: "empty documents are skipped", yaml: "---\n---\n{kind: A, metadata: {name: x}}\n---\n", want: []string{"A/x"}},
		"JSON":         {reason: "JSON is YAML", yaml: `{"kind": "A", "metadata": {"name": "x"}}`, want: []string{"A/x"}},
		"Malformed":    {reason: "the error names the document", yaml: "a: 1\n---\n\t]", err: "document 2"},
		"NotAnObject":  {reason: "a list is no object", yaml: "[1, 2]", err: "document 1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			list, err := apply.Decode([]byte(tc.yaml))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("%s: got %v, want %q", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			var got []string
			for _, o := range list {
				got = append(got, apply.Name(o))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: %s", tc.reason, diff)
			}
		})
	}
}

func TestBadConfigurationNamesTheServer(t *testing.T) {
	config := &rest.Config{Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAFile: "/nonexistent/ca.crt"}}
	if _, err := apply.New(apply.Config{REST: config, Manager: "tests"}); err == nil || !strings.Contains(err.Error(), "https://127.0.0.1:1") {
		t.Errorf("got %v", err)
	}
}

// TestConfigSaysAllThatIsMissing at once.
func TestConfigSaysAllThatIsMissing(t *testing.T) {
	_, err := apply.New(apply.Config{Namespace: "x", Strict: true})
	for _, want := range []string{"REST is required", "Manager is required"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"", "---", "a: 1\n---\nb: 2", "[", "{", "\t", "a: &x [*x]", "# c\n---\nkind: A"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := apply.Decode([]byte(text))
		if err != nil {
			return
		}
		for _, o := range list {
			if len(o.Object) == 0 {
				t.Errorf("%q: an empty object", text)
			}
			_ = apply.Name(o) // whatever the kind is, it can be named
		}
	})
}
