package components_test

import (
	"bytes"
	"flag"
	"strings"
	"testing"

	"errors"

	"github.com/longshore-csi/longshore/devcluster/internal/components"
)

func TestEveryComponentExplainsItself(t *testing.T) {
	for _, name := range components.Names() {
		t.Run(name, func(t *testing.T) {
			var out, help bytes.Buffer
			if err := components.Run(t.Context(), name, []string{"--help"}, &out, &help); !errors.Is(err, flag.ErrHelp) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(help.String(), "-v ") || !strings.Contains(help.String(), "-logging-format") {
				t.Errorf("help lacks the shared flags:\n%s", &help)
			}
			if err := components.Run(t.Context(), name, []string{"--version"}, &out, &help); err != nil || !strings.HasPrefix(out.String(), name+" ") {
				t.Errorf("version %q, %v", &out, err)
			}
		})
	}
}

func TestUnknownComponent(t *testing.T) {
	err := components.Run(t.Context(), "nobody", nil, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "csi-attacher") {
		t.Errorf("got %v", err)
	}
}
