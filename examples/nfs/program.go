package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// program is the mounter of machines: mount(8) with mount.nfs, which the image of the driver must have.
type program struct{}

func (program) mount(ctx context.Context, source, target string, flags []string) error {
	args := []string{"-t", "nfs", source, target}
	if len(flags) > 0 {
		args = append(args, "-o", strings.Join(flags, ","))
	}
	out, err := exec.CommandContext(ctx, "mount", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w: %s", source, target, err, strings.TrimSpace(string(out)))
	}
	return nil
}
