package leader

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(file, []byte(" from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ reason, env, file, want string }{
		"Env":     {reason: "The environment wins.", env: "from-env", file: file, want: "from-env"},
		"File":    {reason: "Pods have a file.", file: file, want: "from-file"},
		"Empty":   {reason: "An empty file says nothing.", file: empty, want: "default"},
		"Default": {reason: "Outside of pods there is the default.", file: "/no/such", want: "default"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := namespace(tc.env, tc.file); got != tc.want {
				t.Errorf("%s: want %q, got %q", tc.reason, tc.want, got)
			}
		})
	}
	t.Setenv("POD_NAMESPACE", "here")
	for given, want := range map[string]string{"": "here", "there": "there"} {
		cfg := Config{Namespace: given}
		if setDefaults(&cfg); cfg.Namespace != want {
			t.Errorf("namespace %q became %q, want %q", given, cfg.Namespace, want)
		}
	}
}
