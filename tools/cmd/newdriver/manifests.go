package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

const (
	deployDir = "deploy"
	// overlay is the form of deployment that the copy gets.
	overlay = "overlays/statefulset"
)

// kustomization is what leads from one file to another.
type kustomization struct {
	Resources  []string `json:"resources"`
	Components []string `json:"components"`
	Patches    []struct {
		Path string `json:"path"`
	} `json:"patches"`
}

// manifests copies the overlay with all that it is made of, and the description of the driver for the storage suite.
func (c copier) manifests() error {
	if err := c.kustomize(filepath.Join(deployDir, overlay)); err != nil {
		return err
	}
	return c.manifest(filepath.Join(deployDir, "test-driver.yaml"))
}

// kustomize copies the files of a directory that its kustomization names, and the directories.
func (c copier) kustomize(dir string) error {
	path := filepath.Join(dir, "kustomization.yaml")
	data, err := os.ReadFile(filepath.Join(c.root, path))
	if err != nil {
		return err
	}
	var k kustomization
	if err := yaml.Unmarshal(data, &k); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err := c.manifest(path); err != nil {
		return err
	}
	named := slices.Concat(k.Resources, k.Components)
	for _, patch := range k.Patches {
		if patch.Path != "" {
			named = append(named, patch.Path)
		}
	}
	for _, name := range named {
		rel := filepath.Join(dir, name)
		info, err := os.Stat(filepath.Join(c.root, rel))
		if err != nil {
			return fmt.Errorf("%s names %s: %w", path, name, err)
		}
		add := c.manifest
		if info.IsDir() {
			add = c.kustomize
		}
		if err := add(rel); err != nil {
			return err
		}
	}
	return nil
}

func (c copier) manifest(rel string) error {
	return c.file(filepath.Join(c.root, rel), rel)
}
