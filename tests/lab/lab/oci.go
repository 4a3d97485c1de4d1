package lab

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Media types of the OCI image specification.
const (
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// blob returns the path of the blob of a digest, "sha256:...".
func (l *Lab) blob(digest string) string {
	return filepath.Join(l.imagesDir(), "blobs", strings.Replace(digest, ":", "/", 1))
}

// store writes an image into the registry's folder and returns the digest of its manifest.
func (l *Lab) store(i image) (string, error) {
	layer, err := l.storeBlob(mediaLayer, i.layer)
	if err != nil {
		return "", err
	}
	config, err := l.storeJSON(mediaConfig, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{i.program}, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	if err != nil {
		return "", err
	}
	stored, err := l.storeJSON(mediaManifest, manifest{SchemaVersion: 2, MediaType: mediaManifest, Config: config, Layers: []descriptor{layer}})
	return stored.Digest, err
}

func (l *Lab) storeJSON(media string, content any) (descriptor, error) {
	return l.storeBlob(media, func(w io.Writer) error { return json.NewEncoder(w).Encode(content) })
}

func (l *Lab) storeBlob(media string, content func(io.Writer) error) (d descriptor, err error) {
	dir := filepath.Join(l.imagesDir(), "blobs", "sha256")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return descriptor{}, err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return descriptor{}, err
	}
	hash := sha256.New()
	if err := content(io.MultiWriter(f, hash)); err != nil {
		return descriptor{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return descriptor{}, err
	}
	if err := f.Close(); err != nil {
		return descriptor{}, err
	}
	d = descriptor{MediaType: media, Digest: "sha256:" + hex.EncodeToString(hash.Sum(nil)), Size: info.Size()}
	return d, os.Rename(f.Name(), l.blob(d.Digest))
}

// archive writes images (reference, digest of the manifest) as one file that
// `ctr images import` reads.
func (l *Lab) archive(path string, refs map[string]string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644) // #nosec G302 G304 -- read by machines
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	t := tar.NewWriter(f)
	written := map[string]bool{}
	index := struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}{SchemaVersion: 2, MediaType: mediaIndex}
	for _, ref := range sortedKeys(refs) {
		content, err := os.ReadFile(l.blob(refs[ref]))
		if err != nil {
			return err
		}
		var m manifest
		if err := json.Unmarshal(content, &m); err != nil {
			return err
		}
		for _, digest := range []string{refs[ref], m.Config.Digest, m.Layers[0].Digest} {
			if written[digest] {
				continue
			}
			written[digest] = true
			blob, err := os.ReadFile(l.blob(digest))
			if err != nil {
				return err
			}
			if err := addFile(t, "blobs/"+strings.Replace(digest, ":", "/", 1), blob); err != nil {
				return err
			}
		}
		index.Manifests = append(index.Manifests, descriptor{MediaType: mediaManifest, Digest: refs[ref], Size: int64(len(content)),
			Annotations: map[string]string{"io.containerd.image.name": ref}})
	}
	body, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := addFile(t, "index.json", body); err != nil {
		return err
	}
	if err := addFile(t, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return t.Close()
}

func addFile(t *tar.Writer, name string, content []byte) error {
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := t.Write(content)
	return err
}
