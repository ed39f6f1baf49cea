/* Drives the desktop program by keys, as a user does: drive SCREENSHOT DOCUMENT [QUESTION…]
   Prints what the window shows, a fact a line. A question "Esc" is typed while an answer comes. */
#define main desktop_main
#include "main.cpp"
#undef main
#include <QtTest>

static void tell(const char *what, const QString &text)
{
    printf("%s %s\n", what, QString(text).replace('\n', ' ').toUtf8().constData());
    fflush(stdout);
}

static bool waits(Window &window) { return QTest::qWaitFor([&] { return !window.running; }, 120000); }

int main(int argc, char **argv)
{
    QApplication app(argc, argv);
    QCoreApplication::setApplicationName("kvarn-desktop"); // names the folder of its data
    Window window("", "{\"max_tokens\": 24, \"temp\": 0, \"logit_bias\": {\"0\": -100}}");
    QObject::connect(&window.bar, &QProgressBar::valueChanged, [&](int done) {
        printf("progress %d %d\n", done, window.bar.maximum());
        fflush(stdout);
    });
    window.show();
    window.open(argv[2]);
    window.activateWindow(); // nobody else does, where no window manager runs
    if (!QTest::qWaitForWindowActive(&window)) return 3;
    if (argc > 3 && !strcmp(argv[3], "Esc")) { // while it reads
        if (!QTest::qWaitFor([&] { return window.bar.value() > 0; }, 120000)) return 4;
        QTest::keyClick(&window, Qt::Key_Escape);
    }
    if (!waits(window)) return 5;
    tell("read", window.status.text());
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "Esc")) continue;
        if (!strcmp(argv[i], "Ctrl+R")) {
            QTest::keyClick(&window, Qt::Key_R, Qt::ControlModifier);
        } else {
            if (QApplication::focusWidget() != &window.question) return 6;
            int before = int(window.conversation.toPlainText().size());
            QTest::keyClicks(QApplication::focusWidget(), argv[i]);
            QTest::keyClick(QApplication::focusWidget(), Qt::Key_Return);
            if (!window.running) return 7;
            if (!QTest::qWaitFor([&] { return window.conversation.toPlainText().size() > before; }))
                return 8;
        }
        if (!waits(window)) return 9;
        tell("status", window.status.text());
    }
    tell("conversation", window.conversation.toPlainText());
    QTest::qWait(100);
    QImage screen = app.primaryScreen()->grabWindow(0).toImage();
    QPoint corner = window.conversation.mapToGlobal(QPoint(0, 0));
    QImage shown = screen.copy(QRect(corner, window.conversation.size()));
    int dark = 0;
    for (int y = 0; y < shown.height(); y++)
        for (int x = 0; x < shown.width(); x++) dark += qGray(shown.pixel(x, y)) < 100;
    printf("dark %d\n", dark);
    return screen.save(argv[1]) ? 0 : 10;
}
