package components_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestComponentRunsUntilItIsToldToEnd runs the driver, the one component that needs nobody else.
func TestComponentRunsUntilItIsToldToEnd(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "csi.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		var out bytes.Buffer
		args := []string{"--endpoint=unix://" + socket, "--statedir=" + filepath.Join(dir, "data"), "--nodeid=n", "--mode=controller"}
		done <- components.Run(ctx, "hostpathplugin", args, &out, &out)
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, err := os.Stat(socket); err != nil; _, err = os.Stat(socket) {
		select {
		case err := <-done:
			t.Fatalf("ended early: %v", err)
		case <-tick.C:
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("an end that was asked for is an error: %v", err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left")
	}
}

func TestErrorsNameTheComponent(t *testing.T) {
	for _, name := range components.Names() {
		var out bytes.Buffer
		if err := components.Run(t.Context(), name, []string{"--no-such-flag"}, &out, &out); err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestProgramReplacesComponent runs the test itself again as the process that becomes a program.
func TestProgramReplacesComponent(t *testing.T) {
	if os.Getenv(components.ProgramsEnv) != "" {
		t.Fatal(components.Run(t.Context(), "csi-attacher", []string{"--v=4"}, nil, nil))
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "csi-attacher"), []byte("#!/bin/sh\necho the attacher of $0 with $*\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for programs, want := range map[string]string{
		dir:         "the attacher of " + filepath.Join(dir, "csi-attacher") + " with --v=4\n",
		dir + "/no": "run " + filepath.Join(dir, "no", "csi-attacher") + ": no such file or directory",
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), components.ProgramsEnv+"="+programs)
		if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("got %v and\n%s\nwant %s", err, out, want)
		}
	}
}
