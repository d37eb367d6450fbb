package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCopyingNamesEverything: who follows the guide finds each package of the driver in it, and each call with its file.
func TestCopyingNamesEverything(t *testing.T) {
	driver := filepath.Join("..", "..", "..", "hostpathdriver")
	text, err := os.ReadFile(filepath.Join(driver, "COPYING.md"))
	if err != nil {
		t.Fatal(err)
	}
	for dir, where := range map[string]string{filepath.Join(driver, "internal"): "internal/", filepath.Join(driver, "..", "driverkit"): "internal/driverkit/"} {
		packages, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range packages {
			if name := "`" + where + entry.Name() + "`"; entry.IsDir() && entry.Name() != "internal" && !strings.Contains(string(text), name) {
				t.Errorf("COPYING.md does not say what becomes of %s", name)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(driver, "internal", "grpcapi", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files of the services: %v, %v", files, err)
	}
	method := regexp.MustCompile(`(?m)^func \(.*\) ([A-Z]\w+)\(.*\*csi\.\w+Request\b`)
	found := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range method.FindAllStringSubmatch(string(source), -1) {
			found++
			row := regexp.MustCompile(`(?m)^\|.*\b` + match[1] + `\b.*\(internal/grpcapi/` + filepath.Base(file) + `\)`)
			if !strings.HasSuffix(match[1], "GetCapabilities") && !row.Match(text) {
				t.Errorf("COPYING.md does not say that %s is in %s", match[1], filepath.Base(file))
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d calls were found", found)
	}
}
